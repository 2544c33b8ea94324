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

// -----

// Random numbers must not be drawn twice: the branch returns them, and what else its
// reverse uses; the other one returns zeros in their place.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[F:.+]]:2 = "stablehlo.case"(%arg0)
// CHECK: %[[NOISE:.+]] = stablehlo.rng
// CHECK: stablehlo.return %{{.+}}, %[[NOISE]]
// CHECK: "stablehlo.case"(%arg0)
// CHECK-NOT: stablehlo.rng
// CHECK: stablehlo.multiply %arg2, %[[F]]#1
// CHECK-NOT: stablehlo.rng
// CHECK: return
func.func @main(%i: tensor<i32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %low = stablehlo.constant dense<0.0> : tensor<f32>
  %high = stablehlo.constant dense<1.0> : tensor<f32>
  %shape = stablehlo.constant dense<3> : tensor<1xi64>
  %y = "stablehlo.case"(%i) ({
    %noise = stablehlo.rng %low, %high, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<3xf32>
    %a = stablehlo.multiply %x, %noise : tensor<3xf32>
    stablehlo.return %a : tensor<3xf32>
  }, {
    stablehlo.return %x : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}

// -----

// The number of iterations is counted; a state before each is found in 49 slots or
// computed from the nearest one.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[F:.+]]:3 = stablehlo.while
// CHECK: stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<3xf32>) -> tensor<49x3xf32>
// CHECK: stablehlo.while
// CHECK: stablehlo.compare GE
// CHECK: stablehlo.while
// CHECK: stablehlo.compare LT
// CHECK: stablehlo.dynamic_update_slice {{.*}} : (tensor<49x3xf32>, tensor<1x3xf32>
// CHECK: stablehlo.sine
// CHECK: stablehlo.cosine
// CHECK: return %[[F]]#1
func.func @main(%x: tensor<3xf32>, %n: tensor<i32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<3xf32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
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

// What runs again in the reverse branch is a collective of its own: a new channel.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.all_reduce
// CHECK-SAME: handle = 1, type = 1
// CHECK: stablehlo.all_reduce
// CHECK-SAME: handle = 2, type = 1
// CHECK: stablehlo.cosine
// CHECK: stablehlo.all_reduce
// CHECK-SAME: handle = 3, type = 1
func.func @main(%i: tensor<i32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %y = "stablehlo.case"(%i) ({
    %a = "stablehlo.all_reduce"(%x) ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids} : (tensor<3xf32>) -> tensor<3xf32>
    %b = stablehlo.sine %a : tensor<3xf32>
    stablehlo.return %b : tensor<3xf32>
  }, {
    stablehlo.return %x : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}
