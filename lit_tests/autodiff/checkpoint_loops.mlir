// RUN: pcp-opt %s --pcp-checkpoint-loops | filecheck %s --check-prefix=MARK
// RUN: pcp-opt %s --pcp-checkpoint-loops=every=4 --pcp-vjp | filecheck %s

// Ten iterations: a state every fourth, three segments at the most.
// MARK: stablehlo.while
// MARK-SAME: pcp.checkpoint = 4 : i64

// Two segments of four and two iterations more, then the same backwards: what is
// kept is the two states at the begin of a segment, and tapes of four and of two.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.while
// CHECK-SAME: pcp.recompute
// CHECK: stablehlo.while
// CHECK: stablehlo.sine
// CHECK: stablehlo.dynamic_update_slice {{.*}} : (tensor<2x3xf32>, tensor<1x3xf32>
// CHECK: stablehlo.while
// CHECK: stablehlo.sine
// CHECK: stablehlo.dynamic_update_slice {{.*}} : (tensor<2x3xf32>, tensor<1x3xf32>
// CHECK: stablehlo.while
// CHECK: stablehlo.cosine
// CHECK: stablehlo.while
// CHECK: stablehlo.while
// CHECK: stablehlo.sine
// CHECK: stablehlo.dynamic_update_slice {{.*}} : (tensor<4x3xf32>, tensor<1x3xf32>
// CHECK: stablehlo.while
// CHECK: stablehlo.cosine
// CHECK: return
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<3xf32>
    cond {
      %ten = stablehlo.constant dense<10> : tensor<i32>
      %c = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.sine %y : tensor<3xf32>
      stablehlo.return %j, %z : tensor<i32>, tensor<3xf32>
    }
  return %r#1 : tensor<3xf32>
}
