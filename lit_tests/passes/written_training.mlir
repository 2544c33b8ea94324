// RUN: pcp-opt %s --pcp-expand-training | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training=func= | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training=expand=false | filecheck %s --check-prefix=KEPT

// The rules of the optimizers and outer algorithms stand in the place of the ops, and
// no function is added.
// KEPT: pcp.optimizer
// KEPT: pcp.outer

// CHECK-LABEL: func.func @update(
// CHECK-SAME: %[[W:.+]]: tensor<4xf32>, %[[G:.+]]: tensor<4xf32>, %[[STEP:.+]]: tensor<i32>)
// CHECK: %[[NEXT:.+]] = stablehlo.add %[[STEP]]
// CHECK: %[[RATE:.+]] = stablehlo.constant dense<1.000000e-01> : tensor<f32>
// CHECK: %[[MOVE:.+]] = stablehlo.multiply %[[G]]
// CHECK: %[[NEW:.+]] = stablehlo.subtract %[[W]], %[[MOVE]]
// CHECK: return %[[NEW]], %[[NEXT]]
func.func @update(%w: tensor<4xf32>, %g: tensor<4xf32>, %step: tensor<i32>) -> (tensor<4xf32>, tensor<i32>) {
  %t = builtin.unrealized_conversion_cast %w, %g, %step : tensor<4xf32>, tensor<4xf32>, tensor<i32> to tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>
  %r = "pcp.optimizer"(%t) {count = 1, hyper = {lr = 0.1}, kind = "sgd"} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  %n:2 = builtin.unrealized_conversion_cast %r : tuple<tensor<4xf32>, tensor<i32>> to tensor<4xf32>, tensor<i32>
  return %n#0, %n#1 : tensor<4xf32>, tensor<i32>
}

// Over the op's own mesh and axes; an ordered op has ordered collectives.
// CHECK-LABEL: func.func @outer(
// CHECK-NOT: pcp.outer
// CHECK: stablehlo.subtract %arg0, %arg1 : tensor<4xf32>
// CHECK: "pcp.all_reduce"{{.*}} {axes = ["dp"], kind = "sum", mesh = @m, ordered}
// CHECK: "pcp.all_reduce"(%arg3) {{.*}}axes = ["dp"], kind = "sum", mesh = @m, ordered}
// CHECK: dense<0.899{{9+}}
// CHECK: dense<5.000000e-01>
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @outer(%anchor: tensor<4xf32>, %local: tensor<4xf32>, %m: tensor<4xf32>, %tokens: tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %t = builtin.unrealized_conversion_cast %anchor, %local, %m, %tokens : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32> to tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>
  %r = "pcp.outer"(%t) {axes = ["dp"], count = 1, hyper = {lr = 0.5}, kind = "diloco", mesh = @m, ordered} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  %n:2 = builtin.unrealized_conversion_cast %r : tuple<tensor<4xf32>, tensor<4xf32>> to tensor<4xf32>, tensor<4xf32>
  return %n#0, %n#1 : tensor<4xf32>, tensor<4xf32>
}

// An average has no state.
// CHECK-LABEL: func.func @average(
// CHECK: "pcp.all_reduce"
// CHECK: "pcp.all_reduce"(%arg2)
// CHECK: return
func.func @average(%anchor: tensor<4xf32>, %local: tensor<4xf32>, %tokens: tensor<f32>) -> tensor<4xf32> {
  %t = builtin.unrealized_conversion_cast %anchor, %local, %tokens : tensor<4xf32>, tensor<4xf32>, tensor<f32> to tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>
  %0 = "pcp.outer"(%t) {axes = ["dp"], count = 1, kind = "average", mesh = @m} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
