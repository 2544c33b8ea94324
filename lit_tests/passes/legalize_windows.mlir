// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// One place along a dimension: what the window does not cover is cut off.

// CHECK-LABEL: func.func @one_place
// CHECK: stablehlo.convolution
// CHECK-SAME{LITERAL}: stride = [1, 1], pad = [[0, 0], [0, -1]]
func.func @one_place(%x: tensor<2x2x2x3xf32>, %k: tensor<3x2x1x2xf32>) -> tensor<2x3x2x1xf32> {
  %0 = stablehlo.convolution(%x, %k)
    dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [1, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x2x2x3xf32>, tensor<3x2x1x2xf32>) -> tensor<2x3x2x1xf32>
  return %0 : tensor<2x3x2x1xf32>
}

// -----

// Two places: as it is.

// CHECK-LABEL: func.func @two_places
// CHECK: stablehlo.convolution
// CHECK-SAME: stride = [1, 2]
func.func @two_places(%x: tensor<2x2x2x4xf32>, %k: tensor<3x2x1x2xf32>) -> tensor<2x3x2x2xf32> {
  %0 = stablehlo.convolution(%x, %k)
    dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [1, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x2x2x4xf32>, tensor<3x2x1x2xf32>) -> tensor<2x3x2x2xf32>
  return %0 : tensor<2x3x2x2xf32>
}

// -----

// The parts of a complex constant are constants.

// CHECK-LABEL: func.func @parts
// CHECK-NEXT: %[[REAL:.*]] = stablehlo.constant dense<[1.000000e+00, 3.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: return %[[REAL]]
func.func @parts() -> tensor<2xf32> {
  %c = stablehlo.constant dense<[(1.0, 2.0), (3.0, 4.0)]> : tensor<2xcomplex<f32>>
  %0 = stablehlo.real %c : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
