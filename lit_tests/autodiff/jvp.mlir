// RUN: pcp-opt %s --pcp-jvp --split-input-file | filecheck %s

// One tangent for each float input, one for each float result; none for integers.
// CHECK-LABEL: func.func @main_jvp(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<i32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>)
// CHECK-SAME: -> (tensor<4xf32>, tensor<i32>, tensor<4xf32>)
// CHECK: %[[A:.+]] = stablehlo.multiply %arg3, %arg1
// CHECK: %[[B:.+]] = stablehlo.multiply %arg0, %arg4
// CHECK: %[[T:.+]] = stablehlo.add %[[A]], %[[B]]
// CHECK: return %{{.+}}, %arg2, %[[T]]
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<i32>) {
  %y = stablehlo.multiply %x, %w : tensor<4xf32>
  return %y, %n : tensor<4xf32>, tensor<i32>
}

// -----

// A rule written for the reverse only is transposed twice; what it made for the
// stand-in is gone, and a sum of the tangent is left.
// CHECK-LABEL: func.func @main_jvp(
// CHECK: stablehlo.reduce(%arg0
// CHECK: stablehlo.reduce(%arg1
// CHECK-NOT: stablehlo.broadcast_in_dim
// CHECK: return
func.func @main(%x: tensor<3x5xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}

// -----

// A loop of any length carries the tangent along.
// CHECK-LABEL: func.func @main_jvp(
// CHECK: stablehlo.while({{.*}} = %arg2)
// CHECK: stablehlo.cosine
func.func @main(%n: tensor<i32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %r:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<3xf32>
    cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %c = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.subtract %i, %one : tensor<i32>
      %z = stablehlo.sine %y : tensor<3xf32>
      stablehlo.return %j, %z : tensor<i32>, tensor<3xf32>
    }
  return %r#1 : tensor<3xf32>
}
