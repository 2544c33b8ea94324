// RUN: pcp-opt %s --pcp-lower-to-runtime | filecheck %s

// A host function is an import with effects, of any number of tensors and results. It
// waits for the send in front of it; one that takes nothing is given a number.
// CHECK: pcp.collectives = {host_0_f32_1 = {dtype = "f32", dtypes = [], function = "now", kind = "host",
// CHECK-SAME: result_dtypes = ["f32"], result_shapes = {{\[\[\]\]}}
// CHECK-SAME: host_2_f32_4 = {dtype = "f32", dtypes = ["f32", "i64"], function = "mix", kind = "host", operands = 3 : i64, result_dtypes = ["f32", "i64"], result_shapes = {{\[\[2\], \[\]\]}}, shape = [4], shapes = {{\[\[4\], \[\]\]}}
// CHECK-SAME: host_3_f32_2 = {{.*}}function = "log", kind = "host", operands = 2 : i64, result_dtypes = [], result_shapes = []
// CHECK-NOT: func.func private
// CHECK: "util.func"() ({
// CHECK-NEXT: }) {function_type = (tensor<2xf32>, tensor<4xf32>) -> (), iree.abi.model = "coarse-fences", sym_name = "pcp_rt.host_3_f32_2"
// CHECK-LABEL: func.func @step(
// CHECK: %[[Z:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK-NEXT: %[[T:.*]] = "util.call"(%[[Z]]) {callee = @pcp_rt.host_0_f32_1}
// CHECK: %[[S:.*]] = "util.call"(%arg0) {callee = @pcp_rt.send_1_f32_4}
// CHECK-NEXT: %[[M:.*]]:2 = "util.call"(%arg0, %arg1, %[[S]]) {callee = @pcp_rt.host_2_f32_4}
// CHECK-NEXT: "util.call"(%[[M]]#0, %[[S]]) {callee = @pcp_rt.host_3_f32_2} : (tensor<2xf32>, tensor<4xf32>) -> ()
// CHECK-NEXT: return %[[M]]#1, %[[T]]
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@d0, @d1], sym_name = "m"} : () -> ()
func.func private @now() -> tensor<f32> attributes {pcp.host}
func.func private @mix(tensor<4xf32>, tensor<i64>) -> (tensor<2xf32>, tensor<i64>) attributes {pcp.host}
func.func private @log(tensor<2xf32>) attributes {pcp.host}
func.func @step(%x: tensor<4xf32>, %n: tensor<i64>) -> (tensor<i64>, tensor<f32>) {
  %t = call @now() : () -> tensor<f32>
  "pcp.send"(%x) {channel = 1, to = @d1} : (tensor<4xf32>) -> ()
  %m:2 = call @mix(%x, %n) : (tensor<4xf32>, tensor<i64>) -> (tensor<2xf32>, tensor<i64>)
  call @log(%m#0) : (tensor<2xf32>) -> ()
  return %m#1, %t : tensor<i64>, tensor<f32>
}
