// RUN: pcp-opt %s --pcp-divide-late | filecheck %s
// RUN: pcp-opt %s --pcp-divide-late --pcp-divide-late | filecheck %s

// Attention as PyTorch writes it: heads are one batch dim of the product.
// CHECK-LABEL: @weighed
// CHECK: %[[M:.*]] = "pcp.stop_gradient"({{.*}}) : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
// CHECK: stablehlo.subtract %arg0, %[[M]]
// CHECK: %[[E:.*]] = stablehlo.exponential
// CHECK: %[[S:.*]] = stablehlo.reduce(%[[E]]
// CHECK: %[[F:.*]] = stablehlo.reshape %[[E]] : (tensor<2x4x8x8xf32>) -> tensor<8x8x8xf32>
// CHECK: %[[N:.*]] = stablehlo.dot_general %[[F]], %arg1
// CHECK: %[[T:.*]] = stablehlo.reshape %[[S]] : (tensor<2x4x8xf32>) -> tensor<8x8xf32>
// CHECK: %[[D:.*]] = stablehlo.broadcast_in_dim %[[T]], dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x2xf32>
// CHECK: stablehlo.divide %[[N]], %[[D]] : tensor<8x8x2xf32>
func.func @weighed(%x: tensor<2x4x8x8xf32>, %v: tensor<8x8x2xf32>) -> tensor<8x8x2xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %M = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
  %d = stablehlo.subtract %x, %M : tensor<2x4x8x8xf32>
  %e = stablehlo.exponential %d : tensor<2x4x8x8xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
  %p = stablehlo.divide %e, %S : tensor<2x4x8x8xf32>
  %q = stablehlo.reshape %p : (tensor<2x4x8x8xf32>) -> tensor<8x8x8xf32>
  %y = stablehlo.dot_general %q, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x8x8xf32>, tensor<8x8x2xf32>) -> tensor<8x8x2xf32>
  return %y : tensor<8x8x2xf32>
}

// As JAX writes it, on the right: sums keep a dim of size 1, a guard is behind the maximum.
// CHECK-LABEL: @right
// CHECK: %[[S:.*]] = stablehlo.reduce(%[[E:[0-9]+]] init: {{.*}}) applies stablehlo.add
// CHECK: %[[N:.*]] = stablehlo.dot_general %arg1, %[[E]], batching_dims = [0] x [0], contracting_dims = [1] x [2]
// CHECK: %[[D:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [0, 2] : (tensor<3x6xf32>) -> tensor<3x2x6xf32>
// CHECK: stablehlo.divide %[[N]], %[[D]]
func.func @right(%x: tensor<3x6x6xf32>, %v: tensor<3x6x2xf32>) -> tensor<3x2x6xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %lows = stablehlo.constant dense<0xFF800000> : tensor<3x6xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<3x6x6xf32>, tensor<f32>) -> tensor<3x6xf32>
  %n = stablehlo.maximum %lows, %m : tensor<3x6xf32>
  %o = stablehlo.broadcast_in_dim %n, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x1xf32>
  %M = stablehlo.broadcast_in_dim %o, dims = [0, 1, 2] : (tensor<3x6x1xf32>) -> tensor<3x6x6xf32>
  %d = stablehlo.subtract %x, %M : tensor<3x6x6xf32>
  %e = stablehlo.exponential %d : tensor<3x6x6xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<3x6x6xf32>, tensor<f32>) -> tensor<3x6xf32>
  %t = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x1xf32>
  %S = stablehlo.broadcast_in_dim %t, dims = [0, 1, 2] : (tensor<3x6x1xf32>) -> tensor<3x6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<3x6x6xf32>
  %y = stablehlo.dot_general %v, %p, batching_dims = [0] x [0], contracting_dims = [1] x [2] : (tensor<3x6x2xf32>, tensor<3x6x6xf32>) -> tensor<3x2x6xf32>
  return %y : tensor<3x2x6xf32>
}

// Rows that see nothing are zeros, as PyTorch has them: the choice goes behind the division.
// CHECK-LABEL: @rows_of_zeros
// CHECK: %[[E:.*]] = stablehlo.exponential
// CHECK: %[[N:.*]] = stablehlo.dot_general %[[E]], %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1]
// CHECK: %[[D:.*]] = stablehlo.divide %[[N]], {{.*}} : tensor<3x6x2xf32>
// CHECK: %[[W:.*]] = stablehlo.broadcast_in_dim %arg2, dims = [0, 1] : (tensor<3x6xi1>) -> tensor<3x6x2xi1>
// CHECK: stablehlo.select %[[W]], {{.*}}, %[[D]] : tensor<3x6x2xi1>, tensor<3x6x2xf32>
func.func @rows_of_zeros(%x: tensor<3x6x6xf32>, %v: tensor<3x6x2xf32>, %none: tensor<3x6xi1>) -> tensor<3x6x2xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<3x6x6xf32>, tensor<f32>) -> tensor<3x6xf32>
  %M = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x6xf32>
  %d = stablehlo.subtract %x, %M : tensor<3x6x6xf32>
  %e = stablehlo.exponential %d : tensor<3x6x6xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<3x6x6xf32>, tensor<f32>) -> tensor<3x6xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<3x6x6xf32>
  %o = stablehlo.reshape %none : (tensor<3x6xi1>) -> tensor<3x6x1xi1>
  %O = stablehlo.broadcast_in_dim %o, dims = [0, 1, 2] : (tensor<3x6x1xi1>) -> tensor<3x6x6xi1>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x6x6xf32>
  %same = stablehlo.broadcast_in_dim %p, dims = [0, 1, 2] : (tensor<3x6x6xf32>) -> tensor<3x6x6xf32>
  %w = stablehlo.select %O, %zeros, %same : tensor<3x6x6xi1>, tensor<3x6x6xf32>
  %y = stablehlo.dot_general %w, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<3x6x6xf32>, tensor<3x6x2xf32>) -> tensor<3x6x2xf32>
  return %y : tensor<3x6x2xf32>
}

// Columns of zeros: what is weighed differs along the row.
// CHECK-LABEL: @columns_of_zeros
// CHECK: stablehlo.divide {{.*}} : tensor<3x6x6xf32>
// CHECK: stablehlo.select
// CHECK-NEXT: stablehlo.dot_general
func.func @columns_of_zeros(%x: tensor<3x6x6xf32>, %v: tensor<3x6x2xf32>, %none: tensor<3x6xi1>) -> tensor<3x6x2xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<3x6x6xf32>, tensor<f32>) -> tensor<3x6xf32>
  %M = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x6xf32>
  %d = stablehlo.subtract %x, %M : tensor<3x6x6xf32>
  %e = stablehlo.exponential %d : tensor<3x6x6xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<3x6x6xf32>, tensor<f32>) -> tensor<3x6xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<3x6xf32>) -> tensor<3x6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<3x6x6xf32>
  %O = stablehlo.broadcast_in_dim %none, dims = [0, 2] : (tensor<3x6xi1>) -> tensor<3x6x6xi1>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x6x6xf32>
  %w = stablehlo.select %O, %zeros, %p : tensor<3x6x6xi1>, tensor<3x6x6xf32>
  %y = stablehlo.dot_general %w, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<3x6x6xf32>, tensor<3x6x2xf32>) -> tensor<3x6x2xf32>
  return %y : tensor<3x6x2xf32>
}

// Sums of columns, repeated in rows: what a row is divided by differs from place to place.
// CHECK-LABEL: @columns
// CHECK: stablehlo.divide {{.*}} : tensor<6x6xf32>
// CHECK-NEXT: stablehlo.dot_general
func.func @columns(%x: tensor<6x6xf32>, %v: tensor<6x2xf32>) -> tensor<6x2xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %M = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<6xf32>) -> tensor<6x6xf32>
  %d = stablehlo.subtract %x, %M : tensor<6x6xf32>
  %e = stablehlo.exponential %d : tensor<6x6xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<6xf32>) -> tensor<6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<6x6xf32>
  %y = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<6x6xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  return %y : tensor<6x2xf32>
}

// The weights are a result too, so nothing is saved.
// CHECK-LABEL: @returned
// CHECK: stablehlo.divide {{.*}} : tensor<6x6xf32>
// CHECK-NEXT: stablehlo.dot_general
func.func @returned(%x: tensor<6x6xf32>, %v: tensor<6x2xf32>) -> (tensor<6x2xf32>, tensor<6x6xf32>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %M = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<6xf32>) -> tensor<6x6xf32>
  %d = stablehlo.subtract %x, %M : tensor<6x6xf32>
  %e = stablehlo.exponential %d : tensor<6x6xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<6xf32>) -> tensor<6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<6x6xf32>
  %y = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<6x6xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  return %y, %p : tensor<6x2xf32>, tensor<6x6xf32>
}

// Nothing bounds the exponentials: their sums could overflow where the quotient is fine.
// CHECK-LABEL: @unbounded
// CHECK: stablehlo.divide {{.*}} : tensor<6x6xf32>
// CHECK-NEXT: stablehlo.dot_general
func.func @unbounded(%x: tensor<6x6xf32>, %v: tensor<6x2xf32>) -> tensor<6x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.exponential %x : tensor<6x6xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<6xf32>) -> tensor<6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<6x6xf32>
  %y = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<6x6xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  return %y : tensor<6x2xf32>
}

// The maximum of a column is subtracted: it differs along the row, and does not cancel.
// CHECK-LABEL: @other_maximum
// CHECK: stablehlo.divide {{.*}} : tensor<6x6xf32>
// CHECK-NEXT: stablehlo.dot_general
func.func @other_maximum(%x: tensor<6x6xf32>, %v: tensor<6x2xf32>) -> tensor<6x2xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %M = stablehlo.broadcast_in_dim %m, dims = [1] : (tensor<6xf32>) -> tensor<6x6xf32>
  %d = stablehlo.subtract %x, %M : tensor<6x6xf32>
  %e = stablehlo.exponential %d : tensor<6x6xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<6xf32>) -> tensor<6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<6x6xf32>
  %y = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<6x6xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  return %y : tensor<6x2xf32>
}

// The sum begins with one, which is not as many times smaller as the exponentials.
// CHECK-LABEL: @from_one_on
// CHECK: stablehlo.divide {{.*}} : tensor<6x6xf32>
// CHECK-NEXT: stablehlo.dot_general
func.func @from_one_on(%x: tensor<6x6xf32>, %v: tensor<6x2xf32>) -> tensor<6x2xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %M = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<6xf32>) -> tensor<6x6xf32>
  %d = stablehlo.subtract %x, %M : tensor<6x6xf32>
  %e = stablehlo.exponential %d : tensor<6x6xf32>
  %s = stablehlo.reduce(%e init: %one) applies stablehlo.add across dimensions = [1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<6xf32>
  %S = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<6xf32>) -> tensor<6x6xf32>
  %p = stablehlo.divide %e, %S : tensor<6x6xf32>
  %y = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<6x6xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  return %y : tensor<6x2xf32>
}
