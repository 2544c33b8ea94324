// RUN: pcp-opt %s --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition | filecheck %s

// What joins the workers joins parts: each member's with those at its place elsewhere.
// A partial sum is one along "tp" first.

"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "w"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()

// CHECK-LABEL: module @m_0
// CHECK: @cut(%[[X:.*]]: tensor<4x3xf32>
// CHECK: "pcp.all_reduce"(%[[X]]) {axes = ["workers"], kind = "sum", mesh = @w, ordered} : (tensor<4x3xf32>)
// CHECK: @partial(%[[X:.*]]: tensor<4xf32>
// CHECK: %[[Y:.*]] = "pcp.all_reduce"({{.*}}) {axes = ["tp"], kind = "sum", mesh = @m, ordered} : (tensor<f32>)
// CHECK: %[[Z:.*]] = "pcp.all_reduce"(%[[Y]]) {axes = ["workers"], kind = "sum", mesh = @w, ordered} : (tensor<f32>)
// CHECK: return %[[Z]]
// CHECK-LABEL: module @m_1
// CHECK: "pcp.all_reduce"({{.*}}) {axes = ["workers"], kind = "sum", mesh = @w, ordered} : (tensor<4x3xf32>)

func.func @cut(%x: tensor<8x3xf32> {pcp.sharding = #pcp.sharding<@m, [["tp"], []], [], []>})
    -> tensor<8x3xf32> {
  %0 = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @w}
    : (tensor<8x3xf32>) -> tensor<8x3xf32>
  return %0 : tensor<8x3xf32>
}

func.func @partial(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["tp"]], [], []>})
    -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %1 = "pcp.all_reduce"(%0) {axes = ["workers"], kind = "sum", mesh = @w}
    : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}
