#!/bin/sh
# Compiles the kernels for every instruction set: native/*.c -> objects/*.o, and a digest
# of the sources that they were made of. `make kernels` runs it.
set -eu
cd "$(dirname "$0")"
CC=${CC:-gcc}
CC_AARCH64=${CC_AARCH64:-aarch64-linux-gnu-gcc}
FLAGS="-std=gnu11 -O2 -fno-tree-vectorize -fno-tree-slp-vectorize -ffreestanding -fPIC
  -fno-stack-protector -fno-math-errno -ffp-contract=fast -fno-asynchronous-unwind-tables
  -fno-ident -Wall -Wextra -Werror"

compile() { # compiler source set flags...
  compiler=$1 source=$2 name=$3
  shift 3
  echo "$source-$name.o"
  $compiler $FLAGS "$@" -c "$source.c" -o "../objects/$source-$name.o"
  if [ -n "$(${compiler%gcc}nm -u "../objects/$source-$name.o")" ]; then
    echo "$source-$name.o needs functions that no module has" >&2
    exit 1
  fi
}

mkdir -p ../objects
for source in grouped product; do
  compile "$CC" $source x86-64 -march=x86-64 -mno-red-zone
  compile "$CC" $source x86-64-v3 -march=x86-64-v3 -mno-red-zone
  compile "$CC" $source x86-64-v4 -march=x86-64-v4 -mno-red-zone -mprefer-vector-width=512
  if [ $source = grouped ]; then
    compile "$CC" $source x86-64-v4-vnni -march=x86-64-v4 -mavx512vnni -mno-red-zone \
      -mprefer-vector-width=512
  fi
  if command -v "$CC_AARCH64" >/dev/null; then
    compile "$CC_AARCH64" $source aarch64 -march=armv8-a
  else
    echo "$source-aarch64.o stays as it is: $CC_AARCH64 is not installed"
  fi
done
cat ./*.c ./*.h | sha256sum | cut -d' ' -f1 >../objects/sources.sha256
