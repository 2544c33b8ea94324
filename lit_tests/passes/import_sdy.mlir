// RUN: pcp-opt %s --split-input-file --pcp-import | filecheck %s
// RUN: pcp-opt %s --split-input-file --pcp-import --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition --pcp-verify-plan | filecheck %s --check-prefix=PLAN

// What JAX writes in generic form is read as pcp's.
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"dp", 2 : i64>, #pcp.axis<"tp", 2 : i64>], devices = [], sym_name = "mesh"}
// CHECK: %arg0: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@mesh, {{.*}}#pcp.dim<[], 0 : i64, 0 : i64>
// CHECK: "pcp.constraint"(%{{.*}}) {sharding = #pcp.sharding<@mesh, [#pcp.dim<["dp"], 1 : i64, 1 : i64>, ["tp"]], [], []>}
// PLAN: module @mesh_3
// PLAN: dot_general {{.*}}(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
"sdy.mesh"() <{mesh = #sdy.mesh<["dp"=2, "tp"=2]>, sym_name = "mesh"}> : () -> ()
func.func public @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {?}]>}, %w: tensor<4x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %1 = "sdy.sharding_constraint"(%0) <{sharding = #sdy.sharding<@mesh, [{"dp"}p1, {"tp"}]>}> : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.tanh %1 : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// A function that is called with shardings of its own is inlined, with constraints.
// CHECK-LABEL: func.func public @other
// CHECK: "pcp.constraint"(%arg0)
// CHECK-NEXT: stablehlo.negate
// CHECK-NEXT: "pcp.barrier_prop"(%{{.*}}) {direction = "fwd"}
// CHECK-NOT: call
// PLAN: module @m_1
// PLAN: stablehlo.negate %{{.*}} : tensor<4xf32>
"sdy.mesh"() <{mesh = #sdy.mesh<["x"=2]>, sym_name = "m"}> : () -> ()
func.func public @other(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @inner(%a) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @inner(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.negate %a : tensor<8xf32>
  %1 = "sdy.propagation_barrier"(%0) <{allowed_direction = #sdy<propagation_direction FORWARD>}> : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

// A rule on a custom call is read, and cuts it.
// CHECK-LABEL: func.func public @ruled
// CHECK: stablehlo.custom_call @dot({{.*}}) {pcp.sharding_rule = "([i, j], [j, k])->([i, k]) {i=8, j=4, k=8}, custom"}
// PLAN: func.func public @ruled
// PLAN: stablehlo.custom_call @dot(%{{.*}}) : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
"sdy.mesh"() <{mesh = #sdy.mesh<["x"=2]>, sym_name = "m"}> : () -> ()
func.func public @ruled(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}, %b: tensor<4x8xf32>) -> tensor<8x8xf32> {
  %0 = "stablehlo.custom_call"(%a, %b) <{call_target_name = "dot"}> {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=8, j=4, k=8}, custom>} : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// A token goes through the borders of a shard_map as it is: it lies nowhere.
// CHECK-LABEL: func.func public @ordered
// CHECK: %[[T:.*]] = stablehlo.after_all
// CHECK: %[[P:.*]] = "pcp.to_part"
// CHECK-NOT: pcp.{{.*}}!stablehlo.token
// CHECK: %[[U:.*]] = stablehlo.after_all %[[T]]
// CHECK: "pcp.all_reduce"(%[[P]])
// CHECK: "pcp.from_part"
// CHECK: stablehlo.after_all %[[U]]
// PLAN: module @m_1
// PLAN: "pcp.all_reduce"
"sdy.mesh"() <{mesh = #sdy.mesh<["x"=2]>, sym_name = "m"}> : () -> ()
func.func public @ordered(%a: tensor<8xf32>) -> tensor<8xf32> {
  %t = stablehlo.after_all : !stablehlo.token
  %0:2 = "sdy.manual_computation"(%t, %a) <{in_shardings = #sdy.sharding_per_value<[<@m, []>, <@m, [{"x"}]>]>, manual_axes = #sdy<manual_axes{"x"}>, out_shardings = #sdy.sharding_per_value<[<@m, []>, <@m, [{"x"}]>]>}> ({
  ^bb0(%u: !stablehlo.token, %b: tensor<4xf32>):
    %v = stablehlo.after_all %u : !stablehlo.token
    %s = "stablehlo.all_reduce"(%b) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb1(%c: tensor<f32>, %d: tensor<f32>):
      %e = stablehlo.add %c, %d : tensor<f32>
      stablehlo.return %e : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    "sdy.return"(%v, %s) : (!stablehlo.token, tensor<4xf32>) -> ()
  }) : (!stablehlo.token, tensor<8xf32>) -> (!stablehlo.token, tensor<8xf32>)
  %w = stablehlo.after_all %0#0 : !stablehlo.token
  return %0#1 : tensor<8xf32>
}
