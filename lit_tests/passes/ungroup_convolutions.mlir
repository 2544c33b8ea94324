// RUN: pcp-opt %s --pcp-ungroup-convolutions | filecheck %s

// A kernel of two places: two products, batched over the groups.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.convolution
// CHECK: [[ONE:%.*]] = stablehlo.dot_general {{.*}}, batching_dims = [0] x [1], contracting_dims = [3] x [0] : (tensor<2x1x4x2xf32>, tensor<2x2x3xf32>) -> tensor<2x1x4x3xf32>
// CHECK: [[TWO:%.*]] = stablehlo.dot_general {{.*}} -> tensor<2x1x4x3xf32>
// CHECK: stablehlo.add [[ONE]], [[TWO]] : tensor<2x1x4x3xf32>
// CHECK: return {{.*}} : tensor<1x4x6xf32>
func.func @main(%x: tensor<1x5x4xf32>, %k: tensor<2x2x6xf32>) -> tensor<1x4x6xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [1], pad = [[0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<1x5x4xf32>, tensor<2x2x6xf32>) -> tensor<1x4x6xf32>
  return %0 : tensor<1x4x6xf32>
}

// Depthwise ones stay.
// CHECK-LABEL: func.func @depthwise
// CHECK: stablehlo.convolution
func.func @depthwise(%x: tensor<1x5x4xf32>, %k: tensor<2x1x4xf32>) -> tensor<1x4x4xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [1], pad = [[0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 4 : i64} : (tensor<1x5x4xf32>, tensor<2x1x4xf32>) -> tensor<1x4x4xf32>
  return %0 : tensor<1x4x4xf32>
}
