// IREE: failed to legalize operation 'stablehlo.collective_broadcast'
// pcp-legalize: an error: write pcp.broadcast
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
