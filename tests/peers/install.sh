#!/usr/bin/env bash
# Puts the real servers and clients in place that the tests run against, promtool and vim. What is in place is left alone.
set -euo pipefail
cd "$(dirname "$0")"

need() { command -v "$1" >/dev/null || { echo "$1 is needed: $2" >&2; exit 1; }; }
need npm "install Node.js 20 or later"
need python3 "install Python 3.11 or later, with venv"

# up_to_date STAMP FILE...: whether STAMP was written for these very files.
up_to_date() { [ -f "$1" ] && [ "$(cat "$1")" = "$(sum "${@:2}")" ]; }
sum() { cat "$@" | sha256sum; }

if ! up_to_date node_modules/.stamp package-lock.json; then
  npm ci
  sum package-lock.json > node_modules/.stamp
fi

if ! up_to_date ../.venv/.stamp requirements.txt; then
  rm -rf ../.venv
  python3 -m venv ../.venv
  ../.venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt
  sum requirements.txt > ../.venv/.stamp
fi

# Debian packages, by the program that is needed of each.
missing=()
command -v promtool >/dev/null || missing+=(prometheus)
command -v vim >/dev/null || missing+=(vim)
if [ ${#missing[@]} != 0 ]; then
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    need sudo "or install these Debian packages yourself: ${missing[*]}"
    sudo="sudo"
  fi
  need apt-get "or install these yourself: ${missing[*]}"
  $sudo apt-get update
  # Only the tools are wanted: no service of a package is to start.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod +x "$policy"
    trap '$sudo rm -f "$policy"' EXIT
  fi
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install --yes --no-install-recommends "${missing[@]}"
fi
