// RUN: pcp-opt %s --pcp-lower-to-runtime --allow-unregistered-dialect | filecheck %s

// A digest is an import of all tensors; each tensor of a parity has one of its own.
// CHECK: module attributes {pcp.collectives = {
// CHECK-SAME: digest_2_f32_12 = {algo = "sha256", dtype = "f32", dtypes = ["f32", "i32"], kind = "digest", operands = 2 : i64, result_dtype = "i64", result_shape = [2]
// CHECK-SAME: parity_0_f32_12 = {action = "repair"
// CHECK-SAME: parity_1_i32_5 = {action = "repair"
// CHECK-SAME: parity_3_f32_12 = {action = "report"
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()

// What comes behind a repair reads what it gives, also as a tuple; what only reports
// changes nothing.
// CHECK: func.func @step(%[[W:.*]]: tensor<3x4xf32>, %[[B:.*]]: tensor<5xi32>)
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[W]]
// CHECK-NEXT: %[[P:.*]] = "util.call"(%[[W]]) {callee = @pcp_rt.parity_0_f32_12}
// CHECK-NEXT: %[[Q:.*]] = "util.call"(%[[B]]) {callee = @pcp_rt.parity_1_i32_5}
// CHECK-NEXT: %[[H:.*]] = "util.call"(%[[P]], %[[Q]]) {callee = @pcp_rt.digest_2_f32_12}
// CHECK-NEXT: "util.call"(%[[P]]) {callee = @pcp_rt.parity_3_f32_12}
// CHECK-NEXT: return %[[H]], %[[P]], %[[N]]
func.func @step(%w: tensor<3x4xf32>, %b: tensor<5xi32>) -> (tensor<2xi64>, tensor<3x4xf32>, tensor<3x4xf32>) {
  %n = stablehlo.negate %w : tensor<3x4xf32>
  %t = builtin.unrealized_conversion_cast %w, %b : tensor<3x4xf32>, tensor<5xi32> to tuple<tensor<3x4xf32>, tensor<5xi32>>
  "pcp.parity"(%t) {action = "repair", axes = ["dp"], mesh = @m} : (tuple<tensor<3x4xf32>, tensor<5xi32>>) -> ()
  %h = "pcp.digest"(%t) {algo = "sha256"} : (tuple<tensor<3x4xf32>, tensor<5xi32>>) -> tensor<2xi64>
  "pcp.parity"(%w) {action = "report", axes = ["dp"], mesh = @m} : (tensor<3x4xf32>) -> ()
  return %h, %w, %n : tensor<2xi64>, tensor<3x4xf32>, tensor<3x4xf32>
}
