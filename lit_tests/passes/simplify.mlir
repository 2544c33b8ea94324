// RUN: pcp-opt %s --pcp-simplify --split-input-file | filecheck %s
// RUN: pcp-opt %s --pass-pipeline='builtin.module(pcp-simplify{signed-zeros=false reassociate=true})' --split-input-file | filecheck %s --check-prefix=LOOSE

// CHECK-LABEL: func.func @transposes
// CHECK-NEXT: stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1]
// CHECK-NEXT: return
func.func @transposes(%x: tensor<2x3xf32>, %w: tensor<4x3xf32>) -> tensor<2x4xf32> {
  %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %0 = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----

// A batch dim that moves with its free dim cannot be said in dimension numbers.
// CHECK-LABEL: func.func @free_dims_change_order
// CHECK: stablehlo.transpose
func.func @free_dims_change_order(%x: tensor<2x3x4xf32>, %w: tensor<4xf32>) -> tensor<3x2xf32> {
  %t = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
  %0 = stablehlo.dot_general %t, %w, contracting_dims = [2] x [0] : (tensor<3x2x4xf32>, tensor<4xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// -----

// +0.0 is not neutral to -0.0, unless the option says that nobody looks.
// CHECK-LABEL: func.func @plus_zero
// CHECK: stablehlo.add
// LOOSE-LABEL: func.func @plus_zero
// LOOSE-NEXT: return %arg0
func.func @plus_zero(%x: tensor<3xf32>) -> tensor<3xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<3xf32>
  %0 = stablehlo.add %x, %z : tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// A sum of n equal terms.
// CHECK-LABEL: func.func @sum_of_repeats
// CHECK: stablehlo.reduce
// LOOSE-LABEL: func.func @sum_of_repeats
// LOOSE-NEXT: %[[N:.*]] = stablehlo.constant dense<5.000000e+00>
// LOOSE-NEXT: stablehlo.multiply %arg0, %[[N]]
// LOOSE-NEXT: return
func.func @sum_of_repeats(%x: tensor<3xf32>) -> tensor<3xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<3xf32>) -> tensor<5x3xf32>
  %0 = stablehlo.reduce(%b init: %z) applies stablehlo.add across dimensions = [0] : (tensor<5x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// Loops are programs of their own; bodies of reductions are left alone.
// CHECK-LABEL: func.func @loop
// CHECK: do {
// CHECK-NOT: stablehlo.negate
// CHECK: stablehlo.return
func.func @loop(%x: tensor<f32>, %p: tensor<i1>) -> tensor<f32> {
  %0 = stablehlo.while(%a = %x) : tensor<f32>
  cond {
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.negate %a : tensor<f32>
    %m = stablehlo.negate %n : tensor<f32>
    %r = stablehlo.sqrt %m : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }
  return %0 : tensor<f32>
}

// -----

// A layout is a matter of dimension numbers.
// CHECK-LABEL: func.func @convolution
// CHECK-NOT: stablehlo.transpose
// CHECK: stablehlo.convolution(%arg0, %arg1)
// CHECK-SAME: [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]
// CHECK-NOT: stablehlo.transpose
// CHECK: return
func.func @convolution(%x: tensor<2x6x5x3xf32>, %w: tensor<3x2x3x4xf32>) -> tensor<2x4x4x4xf32> {
  %a = stablehlo.transpose %x, dims = [0, 3, 1, 2] : (tensor<2x6x5x3xf32>) -> tensor<2x3x6x5xf32>
  %b = stablehlo.transpose %w, dims = [3, 2, 0, 1] : (tensor<3x2x3x4xf32>) -> tensor<4x3x3x2xf32>
  %c = stablehlo.convolution(%a, %b) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x3x6x5xf32>, tensor<4x3x3x2xf32>) -> tensor<2x4x4x4xf32>
  %0 = stablehlo.transpose %c, dims = [0, 2, 3, 1] : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
  return %0 : tensor<2x4x4x4xf32>
}

// -----

// A stop that no derivative can reach goes: of integers, of a constant, of what is
// stopped. Any other stays, and is nothing that its operand could cancel with.
// CHECK-LABEL: func.func @stops
// CHECK-DAG: %[[TWO:.+]] = stablehlo.constant dense<2.000000e+00>
// CHECK-DAG: %[[S:.+]] = "pcp.stop_gradient"(%arg0)
// CHECK-NOT: pcp.stop_gradient
// CHECK: %[[D:.+]] = stablehlo.subtract %arg0, %[[S]]
// CHECK: return %arg1, %[[TWO]], %[[S]], %[[D]]
func.func @stops(%x: tensor<4xf32>, %n: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0 = "pcp.stop_gradient"(%n) : (tensor<4xi32>) -> tensor<4xi32>
  %1 = "pcp.stop_gradient"(%c) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "pcp.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "pcp.stop_gradient"(%2) : (tensor<4xf32>) -> tensor<4xf32>
  %4 = "pcp.stop_gradient"(%3) : (tensor<4xf32>) -> tensor<4xf32>
  %5 = stablehlo.subtract %x, %4 : tensor<4xf32>
  return %0, %1, %3, %5 : tensor<4xi32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A mean with its dims kept, and one without: one value, and so is what is centred.
// CHECK-LABEL: func.func @two_spellings_of_a_mean
// CHECK: %[[MEAN:.*]] = stablehlo.multiply %{{.*}}, %{{.*}} : tensor<3xf32>
// CHECK-NEXT: %[[WIDE:.*]] = stablehlo.broadcast_in_dim %[[MEAN]], dims = [1]
// CHECK-NEXT: %[[CENTRED:.*]] = stablehlo.subtract %arg0, %[[WIDE]]
// CHECK-NEXT: return %[[CENTRED]], %[[CENTRED]]
func.func @two_spellings_of_a_mean(%x: tensor<4x3xf32>, %sum: tensor<3xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>) {
  %share = stablehlo.constant dense<0.25> : tensor<3xf32>
  %kept = stablehlo.constant dense<0.25> : tensor<1x3xf32>
  %0 = stablehlo.multiply %sum, %share : tensor<3xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>
  %2 = stablehlo.subtract %x, %1 : tensor<4x3xf32>
  %3 = stablehlo.reshape %sum : (tensor<3xf32>) -> tensor<1x3xf32>
  %4 = stablehlo.multiply %3, %kept : tensor<1x3xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<1x3xf32>) -> tensor<4x3xf32>
  %6 = stablehlo.subtract %x, %5 : tensor<4x3xf32>
  return %2, %6 : tensor<4x3xf32>, tensor<4x3xf32>
}

// -----

// What a rectifier lets through says which of its inputs were at most zero.
// CHECK-LABEL: @rectified
// CHECK: %[[Y:.*]] = stablehlo.select {{.*}}, {{.*}}, %arg0
// CHECK: %[[T:.*]] = stablehlo.compare LE, %[[Y]]
// CHECK: stablehlo.select %[[T]], {{.*}}, %arg1
func.func @rectified(%x: tensor<4xf32>, %g: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %p = stablehlo.compare LE, %x, %zero, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %y = stablehlo.select %p, %zero, %x : tensor<4xi1>, tensor<4xf32>
  %z = stablehlo.select %p, %zero, %g : tensor<4xi1>, tensor<4xf32>
  return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// -----

// Below a bound that is not zero, the rectifier's result is not.
// CHECK-LABEL: @bounded
// CHECK: %[[P:.*]] = stablehlo.compare LE, %arg0
// CHECK: stablehlo.select %[[P]], {{.*}}, %arg0
// CHECK: stablehlo.select %[[P]], {{.*}}, %arg1
func.func @bounded(%x: tensor<4xf32>, %g: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %p = stablehlo.compare LE, %x, %one, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %y = stablehlo.select %p, %zero, %x : tensor<4xi1>, tensor<4xf32>
  %z = stablehlo.select %p, %zero, %g : tensor<4xi1>, tensor<4xf32>
  return %y, %z : tensor<4xf32>, tensor<4xf32>
}
