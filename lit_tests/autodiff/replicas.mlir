// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// The sum's transpose is a sum over the same groups, on a channel of its own.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>, replica_groups = dense<{{\[\[}}0, 1]]>
// CHECK: %[[G:.+]] = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 8, type = 1>, replica_groups = dense<{{\[\[}}0, 1]]>
// CHECK: return %{{.+}}, %[[G]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = "stablehlo.all_reduce"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>, use_global_device_ids} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// A permutation goes back from target to source.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: "stablehlo.collective_permute"(%arg1) <{source_target_pairs = dense<{{\[\[}}1, 0], [2, 1]]>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [1, 2]]> : tensor<2x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// What was asynchronous is not in what is differentiated.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NOT: stablehlo.async_start
// CHECK: "stablehlo.collective_permute"(%arg0)
// CHECK: "stablehlo.collective_permute"(%arg1)
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %f = "stablehlo.async_start"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    %c = "stablehlo.collective_permute"(%a) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %c : tensor<4xf32>
  }) : (tensor<4xf32>) -> !stablehlo.future<tensor<4xf32>>
  %y = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<4xf32>>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
