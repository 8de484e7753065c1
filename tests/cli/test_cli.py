"""The fedsuite command: what each command prints, and what bad input gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsuite.cli import main
from tests.results.made_runs import make_run
from tests.small_runs import final_model, write_experiment


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDSUITE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def command(monkeypatch, capfd):
    """Run the command in this process; return exit code, output and error output."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedsuite", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capfd.readouterr()
        return caught.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def small(tmp_path):
    return write_experiment(tmp_path / "small.toml")


def everything():
    return sorted(path for path in Path().rglob("*") if path.is_file())


def test_run_resume_and_compare(command, small):
    code, out, err = command(
        "run", small, "--seed", 2, "--set", "run-name=one", "--set", "num-rounds=2"
    )
    assert (code, err) == (0, "")
    assert "round 2 of 2" in out
    # What runs is said before it runs.
    line = (
        "FedAvg on digits, 4 clients, 2 rounds, linear of 650 parameters, local engine, cpu"
    )
    assert out.splitlines()[0] == line
    manifest = json.loads(Path("runs/one/manifest.json").read_text())
    assert (manifest["device"], manifest["parameters"]) == ("cpu", 650)
    assert "worst client" in out
    assert f"run folder: {Path('runs/one').absolute()}" in out
    code, out, _ = command("resume", "runs/one", "--num-rounds", 3)
    assert code == 0
    assert "after round 2" in out
    assert "round 3 of 3" in out
    command("run", small, "--set", "run-name=two", "--set", "num-rounds=3", "--seed", 2)
    assert final_model(Path("runs/one")) == final_model(Path("runs/two"))
    command("run", small, "--set", "run-name=three", "--set", "num-rounds=2")
    compared = ("runs/one", "runs/three", "--output", "new/folder", "--evaluations", "2")
    code, out, _ = command("compare", *compared)
    assert code == 0
    assert "±" in out
    assert out.count("runs end at different rounds, 2 to 3") == 1
    names = {path.name for path in Path("new/folder").iterdir()}
    tables = {"by_seed.csv", "comparison.md"}
    assert names == tables | {"report.html"}
    code, out, _ = command("compare", "runs/one", "runs/three", "--figure", "new/a.pdf")
    assert code == 0
    assert "figure: new/a.pdf (means over clients, each counting once" in out
    assert Path("new/a.pdf").read_bytes().startswith(b"%PDF")
    first = ("compare", "runs/one", "runs/three", "--table", "new/a.tex")
    code, out, _ = command(*first, "--placebo", "fedavg")
    assert code == 1
    code, out, _ = command(*first)
    assert code == 0
    # The answer comes before the tables.
    assert out.startswith("fedavg on digits, 4 clients: mean accuracy ")
    assert Path("new/a.tex").read_text().splitlines()[-1] == r"\end{tabular}"
    code, _, err = command("compare", "runs/one", "--figure", "a.png")
    assert code == 1
    assert "--figure a.png: expected a file that ends in .pdf or .svg" in err


def test_fairness_sets_a_run_against_standalone(command, small):
    all_clients = ("--set", "clients-per-round=0")
    command("run", small, "--set", "run-name=one", *all_clients)
    alone = "runs/alone"
    of_standalone = ("--set", "method=standalone", "--set", "run-name=alone")
    command("run", small, *of_standalone, *all_clients)
    code, out, err = command(
        "fairness", "runs/one", "--standalone", alone, "--output", "out"
    )
    assert (code, err) == (0, "")
    assert "client's model, own test rows" in out
    assert {path.name for path in Path("out").iterdir()} == {"fairness.csv", "fairness.md"}
    end = ("--standalone", alone, "--at-round", "fedavg=1")
    code, out, _ = command("fairness", "runs/one", *end)
    assert (code, "fedavg at round 1" in out) == (0, True)
    for text in ("fedavg", "fedavg=0", "=3", "fedavg=-1"):
        end = ("--standalone", alone, "--at-round", text)
        code, _, err = command("fairness", "runs/one", *end)
        assert (code, f"--at-round {text}: expected LABEL=N" in err) == (1, True)
    code, _, err = command("fairness", "runs/one", "--standalone", "runs/one")
    assert (code, "is no run of Standalone" in err) == (1, True)
    code, _, err = command("fairness", "runs/one")
    assert code == 2


def test_methods(command):
    code, out, _ = command("methods")
    assert code == 0
    assert all(name in out for name in ("fedavg", "fedprox", "FedProx", "arXiv:1812.06127"))


def test_keys_of_a_method(command):
    own = ("proximal-mu", "0.01", "weight mu of the pull")
    others = ("num-rounds", "dirichlet-alpha")
    code, out, _ = command("methods", "fedprox")
    assert code == 0
    assert all(words in out for words in (*own, "fedsuite methods fedprox --all"))
    assert not any(words in out for words in others)
    code, out, _ = command("methods", "fedprox", "--all")
    assert code == 0
    assert all(words in out for words in (*own, *others))
    assert "fine-tune-epochs" not in out


def test_datasets(command):
    code, out, _ = command("datasets")
    assert code == 0
    assert "digits" in out
    assert "fashion_mnist/train-*.parquet" in out


def test_partition(command, small):
    code, out, _ = command("partition", small, "--output", "new/who.html")
    assert code == 0
    assert "fingerprint" in out
    assert "figures: new/who.html" in out
    assert {str(path) for path in everything()} == {"new/who.html"}
    page = Path("new/who.html").read_text()
    assert all(f"<figcaption>{t} rows</figcaption>" in page for t in ("Training", "Test"))
    assert "Covariate shift" not in page


def test_partition_of_shifted_inputs(command, small):
    shift = ("partitioner=covariate-shift", "squared-shift=2", "shift-dimensions=8")
    settings = [word for setting in shift for word in ("--set", setting)]
    code, out, _ = command("partition", small, *settings)
    assert code == 0
    assert "squared shift" in out and "effective size" in out
    assert "<figcaption>Covariate shift</figcaption>" in Path("partition.html").read_text()


def test_doctor(command):
    code, out, _ = command("doctor")
    assert code == 0
    assert all(words in out for words in ("flwr", "torch", "FEDSUITE_DATA", "cores"))


def test_doctor_fails_when_something_is_missing(command, monkeypatch):
    from fedsuite.engines import facts as about

    facts = about.flower_facts()
    monkeypatch.setattr(about, "flower_facts", lambda: {**facts, "torch": ""})
    code, out, _ = command("doctor")
    assert code == 1
    assert "mend first: torch: install torch" in out


@pytest.mark.parametrize(
    "words", [("methds",), ("analyse", "cost"), ("deploy", "stats"), ("run", "--sed", "1")]
)
def test_a_suggestion_comes_once(command, words):
    code, _, err = command(*words)
    assert code == 2
    assert err.lower().count("did you mean") == 1


@pytest.mark.parametrize("name", ["run", "resume", "partition", "compare", "sweep"])
def test_every_command_has_help(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert "Usage" in out


CONFIGURATION = {
    "learning-rat=1": "unknown key 'learning-rat': did you mean 'learning-rate'?",
    "num-rounds=many": "key num-rounds = 'many': expected a whole number >= 1",
    "num-rounds=0": "key num-rounds = 0: expected a whole number >= 1",
    "num-rounds": "'num-rounds': expected key=value",
    "method=fedprocks": "key method = 'fedprocks': did you mean 'fedprox'?",
    "dataset=MNIST": "key dataset = 'MNIST': did you mean 'mnist'?",
    "dataset=digit": "key dataset = 'digit': did you mean 'digits'?",
    "partitioner=dirichelt": "key partitioner = 'dirichelt': did you mean 'dirichlet'?",
    "model=resnet-19": "key model = 'resnet-19': did you mean 'resnet18'?",
    "proximal-mu=1": "key proximal-mu = 1.0: it does not apply here, it belongs to method",
    "clients-per-round=5": "key clients-per-round = 5 cannot go with num-clients = 4: "
    "there are no more clients; set no more, or 0 for all",
    "run-name=a/b": "key run-name = 'a/b': expected letters",
    "num-clients=100000": "key num-clients = 100000: expected 1 to ",
    "threads=1000": "key threads = 1000: expected a whole number >= 1 and <= 256",
}


def fails(command, *arguments):
    """Run a command that must fail in one line and leave nothing; return the line."""
    before = everything()
    code, _, err = command(*arguments)
    assert code == 1
    assert err.startswith("fedsuite: error: ")
    assert err.count("\n") == 1
    assert everything() == before
    return err.removeprefix("fedsuite: error: ").rstrip("\n")


# A sweep names its runs itself, and leaves the data to its workers.
NOT_IN_SWEEPS = ("num-clients", "run-name")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for name in ("run", "partition", "sweep")
        for setting in CONFIGURATION
        if name != "sweep" or not setting.startswith(NOT_IN_SWEEPS)
    ],
)
def test_bad_configuration(command, small, name, setting):
    line = fails(command, name, small, "--set", setting)
    assert line.startswith(CONFIGURATION[setting])


@pytest.mark.parametrize("name", ["run", "sweep", "partition"])
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"lerning_rate": 0.1},
            "unknown key 'lerning-rate': did you mean 'learning-rate'?",
        ),
        ({"num_rounds": "many"}, "key num-rounds = 'many': expected a whole number >= 1"),
        ({"clients_per_round": 5}, "key clients-per-round = 5 cannot go with num-clients"),
        ({"method": "fedprocks"}, "key method = 'fedprocks': did you mean 'fedprox'?"),
    ],
)
def test_what_is_wrong_in_a_file_names_it(command, tmp_path, name, keys, words):
    path = write_experiment(tmp_path / "bad.toml", **keys)
    assert fails(command, name, path).startswith(f"{path}: {words}")
    line = fails(command, name, path, "--set", "threads=2")
    assert line.startswith(f"{path}: {words}")
    assert line.count("bad.toml") == 1


def test_what_is_wrong_on_the_command_line_does_not(command, tmp_path, small):
    line = fails(command, "run", small, "--set", "clients-per-round=5")
    assert line.startswith("key clients-per-round = 5")
    path = write_experiment(tmp_path / "bad.toml", lerning_rate=0.1)
    line = fails(command, "run", path, "--set", "method=fedavg", "--seed", "-1")
    assert line.startswith("key seed = -1")


def test_a_file_of_a_run_is_named_too(command, small):
    command("run", small, "--set", "run-name=a")
    path = Path("runs/a/experiment.toml")
    path.write_text(path.read_text().replace("threads = 1", "thread = 1"))
    line = fails(command, "resume", "runs/a", "--num-rounds", 2)
    assert line.startswith(f"{path.absolute()}: unknown key 'thread'")


def test_bad_files(command, tmp_path):
    (tmp_path / "latin.toml").write_bytes(b'run-name = "\xe9"')
    (tmp_path / "torn.toml").write_text("seed = ")
    (tmp_path / "nested.toml").write_text("[method]\nname = 'fedavg'\n")
    assert "No such file" in fails(command, "run", tmp_path / "none.toml")
    assert "Is a directory" in fails(command, "run", tmp_path)
    assert "is not valid TOML" in fails(command, "run", tmp_path / "latin.toml")
    assert "is not valid TOML" in fails(command, "run", tmp_path / "torn.toml")
    assert "keys are flat" in fails(command, "run", tmp_path / "nested.toml")


def test_bad_options(command, small):
    assert fails(command, "run", small, "--engine", "cloud") == (
        "--engine cloud: expected one of local, ray, deployment"
    )
    assert fails(command, "run", small, "--seed", "-1").startswith("key seed = -1")
    assert "expected at most" in fails(command, "run", small, "--num-supernodes", 5)


def test_unknown_names(command):
    assert fails(command, "methods", "fedavgg").startswith(
        "unknown method 'fedavgg': did you mean 'fedavg'?"
    )
    assert fails(command, "methods", "fedadam") == (
        'fedadam is an option of fedavg: method = "fedavg" with server-optimizer = "adam"'
    )
    assert "none is not a folder" in fails(command, "compare", "none")


def test_more_clients_than_samples_and_empty_clients(command, small):
    line = fails(command, "run", small, "--set", "num-clients=2000")
    assert line.startswith("key num-clients = 2000: expected 1 to 359")
    settings = ["--set", "partitioner=power-law", "--set", "power-law-exponent=9"]
    line = fails(command, "run", small, *settings)
    assert "client 2 of num-clients = 4 gets none" in line
    assert "power-law-exponent" in line


def test_a_partition_that_cannot_be_drawn(command, small):
    settings = ["--set", "partitioner=dirichlet", "--set", "dirichlet-min-size=360"]
    assert "dirichlet-min-size" in fails(command, "run", small, *settings)


def test_data_that_cannot_be_read(command, small, tmp_path):
    folder = tmp_path / "data" / "mnist"
    settings = ["--set", "dataset=mnist", "--set", f"data-dir={tmp_path / 'data'}"]
    assert "does not exist" in fails(command, "run", small, *settings)
    folder.mkdir(parents=True)
    assert "train-*.parquet" in fails(command, "run", small, *settings)
    for part in ("train", "test"):
        (folder / f"{part}-00000.parquet").write_bytes(b"PAR1 no parquet")
    assert "train-00000.parquet" in fails(command, "run", small, *settings)


def test_loss_that_is_not_finite(command, small, caplog):
    settings = {"model": "mlp", "learning-rate": 1e10, "max-failed-rounds": 1}
    options = [f"--set={name}={value}" for name, value in settings.items()]
    options += ["--set=run-name=a", "--set=num-rounds=2"]
    code, _, err = command("run", small, *options)
    assert code == 1
    assert "Traceback" not in err
    assert not [record for record in caplog.records if record.exc_info]
    line = err.splitlines()[-1]
    assert line.startswith("fedsuite: error: round ")
    assert "training loss is " in line
    assert "lower learning-rate" in line
    manifest = json.loads(Path("runs/a/manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert line == f"fedsuite: error: {manifest['error']}"
    assert not Path("runs/a/model.safetensors").exists()


def test_run_folder_that_exists(command, small):
    make_run("runs/mine")
    line = fails(command, "run", small, "--set", "run-name=mine")
    assert "runs/mine exists and is not empty" in line
    assert "fedsuite resume" in line


def test_run_folder_that_cannot_be_written(command, small):
    Path("file").touch()
    line = fails(command, "run", small, "--set", "output-dir=file")
    assert line.startswith("cannot write ")


def test_bad_run_folders(command):
    assert "none is not a folder" in fails(command, "resume", "none")
    assert "holds no manifest.json" in fails(command, "resume", ".")
    make_run("runs/done")
    assert "is finished after round 1" in fails(command, "resume", "runs/done")
    Path("runs/done/manifest.json").write_text("[]")
    assert "the file is damaged" in fails(command, "resume", "runs/done")
    assert "the file is damaged" in fails(command, "compare", "runs/done")


def test_checkpoint_of_another_experiment(command, small):
    command("run", small, "--set", "run-name=a")
    path = Path("runs/a/experiment.toml")
    path.write_text(path.read_text().replace("learning-rate = 0.1", "learning-rate = 0.2"))
    line = fails(command, "resume", "runs/a", "--num-rounds", 2)
    assert "belongs to another experiment" in line


def test_interruption_is_quiet(command, small, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsuite.engines.api.run", interrupt)
    assert command("run", small) == (130, "", "")


def test_as_a_process_of_its_own(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "fedsuite", "run", tmp_path / "none.toml"],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"fedsuite: error: cannot read experiment {tmp_path}/none.toml: "
        "No such file or directory\n"
    )


def test_threads_of_openmp_are_left_to_the_key(command, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    command("methods")
    assert os.environ["OMP_NUM_THREADS"] == "1"
