// RUN: pcp-opt %s --pcp-legalize | filecheck %s

// The sum comes first, so that its combiner stays an addition.
// CHECK-LABEL: @negated_sum
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%arg0
// CHECK-NEXT: %[[NEG:.*]] = stablehlo.negate %[[SUM]] : tensor<2xf32>
// CHECK-NEXT: return %[[NEG]]
func.func @negated_sum(%x: tensor<2x3xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.negate %x : tensor<2x3xf32>
  %s = stablehlo.reduce(%n init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}

// Also where the summand is only moved after its negation.
// CHECK-LABEL: @moved
// CHECK: %[[X:.*]] = stablehlo.reshape %arg0
// CHECK: stablehlo.reduce(%[[X]]
// CHECK-NEXT: stablehlo.negate
func.func @moved(%x: tensor<6xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.negate %x : tensor<6xf32>
  %r = stablehlo.reshape %n : (tensor<6xf32>) -> tensor<2x3xf32>
  %s = stablehlo.reduce(%r init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}

// A maximum of negated values is not the negated maximum.
// CHECK-LABEL: @maximum
// CHECK: %[[N:.*]] = stablehlo.negate %arg0
// CHECK: stablehlo.reduce(%[[N]]
func.func @maximum(%x: tensor<2x3xf32>) -> tensor<2xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %n = stablehlo.negate %x : tensor<2x3xf32>
  %s = stablehlo.reduce(%n init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}

// A sum of all elements, of which some are spread along a dimension, goes dim by dim.
// CHECK-LABEL: @all_with_rows
// CHECK: %[[P:.*]] = stablehlo.multiply
// CHECK: %[[ROWS:.*]] = stablehlo.reduce(%[[P]] {{.*}} dimensions = [1]
// CHECK: stablehlo.reduce(%[[ROWS]] {{.*}} dimensions = [0]
func.func @all_with_rows(%w: tensor<3xf32>, %x: tensor<2x3xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
  %p = stablehlo.multiply %b, %x : tensor<2x3xf32>
  %s = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
  return %s : tensor<f32>
}

// Without rows it stays.
// CHECK-LABEL: @all
// CHECK: dimensions = [0, 1]
func.func @all(%x: tensor<2x3xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.multiply %x, %x : tensor<2x3xf32>
  %s = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
  return %s : tensor<f32>
}

// What adds up nothing is zeros.
// CHECK-LABEL: @of_nothing
// CHECK-DAG: %[[P:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<2x3x4xf32>
// CHECK-DAG: %[[C:.*]] = stablehlo.constant dense<0> : tensor<1x5x6xi32>
// CHECK: return %[[P]], %[[C]]
func.func @of_nothing(%a: tensor<2x0x3xf32>, %b: tensor<2x0x4xf32>, %x: tensor<1x5x0xi32>, %w: tensor<3x0x6xi32>) -> (tensor<2x3x4xf32>, tensor<1x5x6xi32>) {
  %p = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [1] x [1] : (tensor<2x0x3xf32>, tensor<2x0x4xf32>) -> tensor<2x3x4xf32>
  %c = "stablehlo.convolution"(%x, %w) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, feature_group_count = 1 : i64, padding = dense<[[1, 1]]> : tensor<1x2xi64>}> : (tensor<1x5x0xi32>, tensor<3x0x6xi32>) -> tensor<1x5x6xi32>
  return %p, %c : tensor<2x3x4xf32>, tensor<1x5x6xi32>
}
