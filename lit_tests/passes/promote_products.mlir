// RUN: pcp-opt %s --pcp-promote-products --allow-unregistered-dialect | filecheck %s

// Each operand is converted once, in a kernel of its own.
// CHECK-LABEL: func.func @products(
// CHECK: %[[X:.*]] = "flow.dispatch.region"()
// CHECK: stablehlo.convert %arg0 : (tensor<32x64xbf16>) -> tensor<32x64xf32>
// CHECK: %[[W:.*]] = "flow.dispatch.region"()
// CHECK: stablehlo.convert %arg1
// CHECK: stablehlo.dot_general %[[X]], %[[W]], {{.*}} : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
// CHECK-NOT: stablehlo.convert
// CHECK: stablehlo.dot_general %[[X]], %[[X]]
func.func @products(%x: tensor<32x64xbf16>, %w: tensor<64x16xbf16>) -> (tensor<32x16xf32>, tensor<32x32xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<32x64xbf16>, tensor<64x16xbf16>) -> tensor<32x16xf32>
  %1 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<32x64xbf16>, tensor<32x64xbf16>) -> tensor<32x32xf32>
  return %0, %1 : tensor<32x16xf32>, tensor<32x32xf32>
}

// Few rows read the matrix once, and kernels of our own take a narrow one as it is.
// CHECK-LABEL: func.func @others(
// CHECK-NOT: dispatch.region
// CHECK: return
func.func @others(%x: tensor<8x64xbf16>, %w: tensor<64x16xbf16>, %a: tensor<32x64xf32>) -> (tensor<8x16xf32>, tensor<32x16xf32>, tensor<32x16xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x64xbf16>, tensor<64x16xbf16>) -> tensor<8x16xf32>
  %c = stablehlo.convert %w : (tensor<64x16xbf16>) -> tensor<64x16xf32>
  %1 = stablehlo.dot_general %a, %c, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  %2 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x16xbf16>) -> tensor<32x16xf32>
  return %0, %1, %2 : tensor<8x16xf32>, tensor<32x16xf32>, tensor<32x16xf32>
}
