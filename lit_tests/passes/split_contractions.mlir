// RUN: pcp-opt %s --pcp-split-contractions | filecheck %s
// RUN: pcp-opt %s --pcp-split-contractions=chunk=2,least=1 | filecheck %s --check-prefix=SMALL

// The gradient of a weight over 2048 tokens, in eight chunks.
// CHECK-LABEL: @weight_gradient
// CHECK: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<2048x256xf32>) -> tensor<8x256x256xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %arg1 : (tensor<2048x64xf32>) -> tensor<8x256x64xf32>
// CHECK: %[[C:.*]] = stablehlo.dot_general %[[A]], %[[B]], batching_dims = [0] x [0], contracting_dims = [1] x [1]
// CHECK: stablehlo.reduce(%[[C]]
// CHECK-SAME: across dimensions = [0]
func.func @weight_gradient(%x: tensor<2048x256xf32>, %g: tensor<2048x64xf32>) -> tensor<256x64xf32> {
  %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<2048x256xf32>, tensor<2048x64xf32>) -> tensor<256x64xf32>
  return %0 : tensor<256x64xf32>
}

// Too little to gain; with smaller limits it is split as well.
// CHECK-LABEL: @small
// CHECK-NEXT: stablehlo.dot_general %arg0, %arg1, contracting_dims = [0] x [0]
// SMALL-LABEL: @small
// SMALL: stablehlo.dot_general {{.*}} batching_dims = [0] x [0]
func.func @small(%x: tensor<8x4xf32>, %g: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// The rows of a product are not what is summed.
// CHECK-LABEL: @forward
// CHECK-NEXT: stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
func.func @forward(%x: tensor<2048x2048xf32>, %w: tensor<2048x64xf32>) -> tensor<2048x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2048x2048xf32>, tensor<2048x64xf32>) -> tensor<2048x64xf32>
  return %0 : tensor<2048x64xf32>
}
