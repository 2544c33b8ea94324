#!/bin/sh
# Compiles the kernels for every instruction set: native/*.c -> objects/*.o, CUDA's to
# objects/cuda.ptx.xz, and a digest of the sources that they were made of. `make kernels`
# runs it.
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
for source in attention grouped product; do
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
NVCC=${NVCC:-nvcc}
if command -v "$NVCC" >/dev/null; then
  echo "cuda.ptx.xz"
  "$NVCC" -O3 -std=c++17 -arch=compute_80 -ptx product.cu -o product.ptx
  # The instructions are those of PTX 7.0: older drivers take it, too.
  sed -e 's/^\.version .*/.version 7.8/' -e '/^[[:space:]]*\/\//d' product.ptx |
    xz -9 >../objects/cuda.ptx.xz
  rm product.ptx
else
  echo "cuda.ptx.xz stays as it is: $NVCC is not installed"
fi
cat ./*.c ./*.h ./*.cu | sha256sum | cut -d' ' -f1 >../objects/sources.sha256
