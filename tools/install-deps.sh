#!/usr/bin/env bash
# Installs every Debian package that building, testing and the demo need, and does nothing else.
# When all are there it needs neither root nor network. Usage: tools/install-deps.sh [--rdma] [--list]
# --rdma adds what the tests of label rdma need: a virtual machine with soft-RoCE devices, ib_read_bw for oasis-bench to
# measure against (perftest), and callgrind for tests/fabric/count-instructions (valgrind).
set -euo pipefail

packages=(
  # tools
  abigail-tools ca-certificates ccache clang clang-format clang-tidy cmake g++ git ninja-build pkg-config
  protobuf-compiler protobuf-compiler-grpc python3 python3-venv ucx-utils
  # libraries
  libabsl-dev libbenchmark-dev libgmock-dev libgrpc++-dev libgtest-dev libnuma-dev
  libibverbs-dev libprotobuf-dev libucx-dev nlohmann-json3-dev prometheus-cpp-dev
  # the prose that the demo's model reads
  debian-history
)

say() { echo "install-deps: $*"; }
fail() { say "$*" >&2; exit 1; }

rdma_packages=(busybox-static ibverbs-providers iproute2 perftest qemu-system-x86 valgrind xz-utils zstd)
if [[ ${1:-} == --rdma ]]; then
  packages+=("${rdma_packages[@]}")
  shift
fi

case "${1:-}" in
  "") ;;
  --list) printf '%s\n' "${packages[@]}"; exit 0 ;;
  *) fail "unknown argument '$1'; usage: tools/install-deps.sh [--rdma] [--list]" ;;
esac

command -v dpkg-query > /dev/null ||
  fail "this is not a Debian system (no dpkg-query); install the equivalents of: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  say "all ${#packages[@]} packages are installed"
  exit 0
fi
say "to be installed (${#missing[@]} of ${#packages[@]}): ${missing[*]}"

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null ||
    fail "not root and no sudo here; run as root: apt-get install --no-install-recommends ${missing[*]}"
  as_root=(sudo)
  say "using sudo for apt-get"
fi

# sudo drops the environment, hence env.
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" < /dev/null; }
install() { apt install -y --no-install-recommends "${missing[@]}"; }

# The package lists that are there may do; they are fetched anew only when they do not.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! apt install -y --no-install-recommends --print-uris "${missing[@]}" > /dev/null 2>&1 ||
   ! install > "$log" 2>&1; then
  say "fetching the package lists (apt-get update)"
  apt update > "$log" 2>&1 || { cat "$log" >&2; fail "apt-get update failed, see above; is there a network, are the sources in /etc/apt right?"; }
  install > "$log" 2>&1 || { cat "$log" >&2; fail "apt-get install failed, see above; the packages are those of Debian 12 (main)"; }
fi
say "installed ${#missing[@]} packages"
