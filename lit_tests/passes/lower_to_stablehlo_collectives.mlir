// RUN: pcp-opt %s --pcp-lower-to-stablehlo-collectives=elastic=2 | filecheck %s

// CHECK: func.func @step(%[[X:.*]]: tensor<4xf32>)
// CHECK: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[X]])
// CHECK-SAME: channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>
// CHECK-SAME: replica_groups = dense<{{\[\[}}0, 1]]> : tensor<1x2xi64>
// CHECK-SAME: use_global_device_ids
// CHECK: stablehlo.add
// CHECK: %[[TWO:.*]] = stablehlo.constant dense<2.000000e+00>
// CHECK: %[[MEAN:.*]] = stablehlo.divide %[[SUM]], %[[TWO]]
// CHECK: "stablehlo.collective_broadcast"(%[[MEAN]])
// CHECK-SAME: channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>
// CHECK-SAME: replica_groups = dense<{{\[\[}}1, 0]]>
// CHECK-NOT: pcp.sync
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "m"} : () -> ()
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "mean", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  "pcp.sync"() {axes = ["workers"], mesh = @m} : () -> ()
  %1 = "pcp.broadcast"(%0) {axes = ["workers"], mesh = @m, root = 1} : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
