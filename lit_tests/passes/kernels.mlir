// RUN: pcp-opt %s --pcp-kernels=set=x86-64-v4-vnni --allow-unregistered-dialect | filecheck %s
// RUN: pcp-opt %s --pcp-kernels=set=x86-64 --allow-unregistered-dialect | filecheck %s --check-prefix=BASE

// One executable with an export for each kind of call, and its object by name.
// CHECK: "stream.executable"() <{sym_name = "pcp_kernels_product", sym_visibility = "private"}>
// CHECK: sym_name = "pcp_product_f32_96_1_256_512_3"
// CHECK: %c3 = arith.constant 3 : index
// CHECK: sym_name = "pcp_product_bf16_96_4_256_512_3"
// CHECK: func.func private @pcp_product_f32(memref<f32>, index, memref<f32>, index, memref<f32>, index, index, index, index, index, index) attributes {hal.import.static, llvm.bareptr = [true]}
// CHECK: "stream.binding.subspan"({{.*}}) : (!stream.binding, index) -> memref<512xf32, strided<[1], offset: ?>>
// CHECK: hal.executable.objects = #hal.executable.objects<{#hal.executable.target<"llvm-cpu", "embedded-elf-x86_64"> = [#hal.executable.object<{path = "pcp-{{[0-9a-f]+}}-product-x86-64-v4.o"}>]}>
// BASE: path = "pcp-{{[0-9a-f]+}}-product-x86-64.o"

// A vector with the rows of a matrix.
// CHECK-LABEL: @vector
// CHECK-NEXT: "flow.dispatch"(%arg0, %arg1) {entry_points = [@pcp_kernels_product::@pcp_product_f32_96_1_256_512_3]
// CHECK-NEXT: return
func.func @vector(%x: tensor<1x512xf32>, %w: tensor<256x512xf32>) -> tensor<1x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<1x512xf32>, tensor<256x512xf32>) -> tensor<1x256xf32>
  return %0 : tensor<1x256xf32>
}

// Weights are read as they are stored; heads are dimensions of their own.
// CHECK-LABEL: @stored
// CHECK: %[[Y:.*]] = "flow.dispatch"(%arg0, %arg1) {entry_points = [@pcp_kernels_product::@pcp_product_bf16_96_4_256_512_3]
// CHECK-NEXT: stablehlo.reshape %[[Y]] : (tensor<4x256xf32>) -> tensor<4x4x64xf32>
func.func @stored(%x: tensor<4x512xf32>, %w: tensor<4x64x512xbf16>) -> tensor<4x4x64xf32> {
  %0 = stablehlo.convert %w : (tensor<4x64x512xbf16>) -> tensor<4x64x512xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [2] : (tensor<4x512xf32>, tensor<4x64x512xf32>) -> tensor<4x4x64xf32>
  return %1 : tensor<4x4x64xf32>
}

// Another form, and few weights.
// CHECK-LABEL: @other
// CHECK-NEXT: stablehlo.dot_general
func.func @other(%x: tensor<1x512xf32>, %w: tensor<512x256xf32>) -> tensor<1x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<1x512xf32>, tensor<512x256xf32>) -> tensor<1x256xf32>
  return %0 : tensor<1x256xf32>
}

// CHECK-LABEL: @small
// CHECK-NEXT: stablehlo.dot_general
func.func @small(%x: tensor<1x32xf32>, %w: tensor<256x32xf32>) -> tensor<1x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<1x32xf32>, tensor<256x32xf32>) -> tensor<1x256xf32>
  return %0 : tensor<1x256xf32>
}
