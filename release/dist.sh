#!/usr/bin/env bash
# Makes into dist/ what is released: wheel, source archive, requirements with hashes, and a bill of
# materials. Installs the wheel in an empty environment as a site does, by hashes, and runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
constraints=$PWD/${CONSTRAINTS:-constraints/flwr-1.42.txt}
# The same commit gives the same archives.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "dist: wheel and source archive"
rm -rf dist
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install -r release/tools.txt
"$work/tools/bin/python" -m build --outdir dist . > "$work/build.log" || {
  cat "$work/build.log"
  exit 1
}
"$work/tools/bin/twine" check --strict dist/*
# W002: two packages of methods may have one line of text alone.
"$work/tools/bin/check-wheel-contents" --ignore W002 dist/*.whl

echo "dist: requirements with hashes, bill of materials"
# torch is the site's choice, a build for processors or one for its GPU, with what it needs.
"$python" -m venv "$work/pinned"
"$work/pinned/bin/pip" install --constraint "$constraints" torch
"$work/pinned/bin/pip" freeze > "$work/of-torch.txt"
torch=$(grep ^torch== "$work/of-torch.txt" | cut -d+ -f1)
"$work/pinned/bin/pip" install --constraint "$constraints" dist/*.whl
"$work/pinned/bin/pip" freeze --exclude fedsuite |
  grep -vxFf "$work/of-torch.txt" > "$work/pinned.in"
wheel=$(basename dist/*.whl)
version=$(cut -d- -f2 <<< "$wheel")
{
  echo "# A node's packages on Linux, in an environment of its own that has $torch:"
  echo "#   pip install $torch"
  echo "#   pip install --no-deps --require-hashes -r requirements.txt"
  echo "--find-links ."
  echo "fedsuite==$version --hash=sha256:$(sha256sum "dist/$wheel" | cut -d' ' -f1)"
  "$work/tools/bin/uv" pip compile --quiet --no-deps --no-header --no-annotate \
    --generate-hashes "$work/pinned.in"
} > dist/requirements.txt
"$work/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible \
  --output-file dist/sbom.cdx.json "$work/pinned/bin/python"

echo "dist: an empty environment, installed by hashes"
"$python" -m venv "$work/site"
"$work/site/bin/pip" install "$torch"
"$work/site/bin/pip" install --no-deps --require-hashes -r dist/requirements.txt
"$work/site/bin/pip" check
cd "$work"
site/bin/fedsuite doctor
OMP_NUM_THREADS=1 site/bin/fedsuite run simulations/quickstart.toml --set num-rounds=1
cd - > /dev/null
(cd dist && sha256sum ./* > "$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
echo "dist: $(ls dist | tr '\n' ' ')"
