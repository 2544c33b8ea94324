// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// The reverse loop counts down; only the sine's operand is kept, in a tape of one
// slot an iteration. The counter is computed again.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[TAPE:.+]] = stablehlo.constant dense<0.000000e+00> : tensor<5x3xf32>
// CHECK: %[[F:.+]]:3 = stablehlo.while({{.*}} = %[[TAPE]])
// CHECK: stablehlo.dynamic_update_slice
// CHECK: %[[LAST:.+]] = stablehlo.constant dense<4> : tensor<i32>
// CHECK: %[[R:.+]]:2 = stablehlo.while({{.*}} = %[[LAST]], {{.*}} = %arg1)
// CHECK: stablehlo.compare GE
// CHECK: stablehlo.dynamic_slice %[[F]]#2
// CHECK: stablehlo.cosine
// CHECK: return %[[F]]#1, %[[R]]#1
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<3xf32>
    cond {
      %five = stablehlo.constant dense<5> : tensor<i32>
      %c = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.sine %y : tensor<3xf32>
      stablehlo.return %j, %z : tensor<i32>, tensor<3xf32>
    }
  return %r#1 : tensor<3xf32>
}

// -----

// The same branch in both directions.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: "stablehlo.case"(%arg0)
// CHECK: "stablehlo.case"(%arg0)
// CHECK: stablehlo.cosine
// CHECK: }, {
// CHECK-NOT: stablehlo.cosine
// CHECK: return
func.func @main(%i: tensor<i32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %y = "stablehlo.case"(%i) ({
    %a = stablehlo.sine %x : tensor<3xf32>
    stablehlo.return %a : tensor<3xf32>
  }, {
    stablehlo.return %x : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}
