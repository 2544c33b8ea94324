// RUN: pcp-opt %s --pcp-verify-plan --split-input-file | filecheck %s

// A plan that holds: the pass changes nothing.
// CHECK: "pcp.mesh"()
// CHECK-LABEL: func.func @main
// CHECK: "pcp.all_reduce"
// CHECK: "pcp.start"
// CHECK: "pcp.wait"
"pcp.target"() {arch = "sm_90a", caps = {}, driver = "cuda", sym_name = "h"} : () -> ()
"pcp.device"() {sym_name = "d0", target = @h} : () -> ()
"pcp.device"() {sym_name = "d1", target = @h} : () -> ()
"pcp.link"() {bandwidth = 1.0e9, ends = [@d0, @d1], latency_ns = 2000} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@d0, @d1], sym_name = "m"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "w"} : () -> ()
"pcp.grad"() {fn = @loss, sym_name = "loss_grad", wrt = [0]} : () -> ()
func.func @loss(%w: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}
func.func @main(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<8x4xf32> {
  %0 = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @w} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.tanh %0 {pcp.sharding = [#pcp.sharding<@m, [["dp"], []], [], []>]} : tensor<8x4xf32>
  %f = "pcp.start"(%1) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  %2 = "pcp.wait"(%f) : (!pcp.future<tensor<8x4xf32>>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}
func.func @pipeline(%a: !pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1> {
  %b = "pcp.transfer"(%a) : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
  return %b : !pcp.on<tensor<4xf32>, @d1>
}

// -----

// One program for each device: a 2x2 mesh, collectives along both axes and a
// channel between two of them.
// CHECK: module @d0
// CHECK: module @d3
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [@d0, @d1, @d2, @d3], sym_name = "m"} : () -> ()
module @d0 {
  func.func @f(%x: tensor<3xf32>) -> tensor<8xf32> {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<3xf32>) -> tensor<3xf32>
    %1 = "pcp.all_gather"(%0) {axes = ["tp"], dim = 0, mesh = @m, ordered, sizes = [3, 5]} : (tensor<3xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}
module @d1 {
  func.func @f(%x: tensor<5xf32>) -> tensor<8xf32> {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<5xf32>) -> tensor<5xf32>
    %1 = "pcp.all_gather"(%0) {axes = ["tp"], dim = 0, mesh = @m, ordered, sizes = [3, 5]} : (tensor<5xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}
module @d2 {
  func.func @f(%x: tensor<3xf32>) -> tensor<8xf32> {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<3xf32>) -> tensor<3xf32>
    %1 = "pcp.all_gather"(%0) {axes = ["tp"], dim = 0, mesh = @m, ordered, sizes = [3, 5]} : (tensor<3xf32>) -> tensor<8xf32>
    "pcp.send"(%1) {channel = 1, to = @d3} : (tensor<8xf32>) -> ()
    return %1 : tensor<8xf32>
  }
}
module @d3 {
  func.func @f(%x: tensor<5xf32>) -> tensor<8xf32> {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<5xf32>) -> tensor<5xf32>
    %1 = "pcp.all_gather"(%0) {axes = ["tp"], dim = 0, mesh = @m, ordered, sizes = [3, 5]} : (tensor<5xf32>) -> tensor<8xf32>
    %2 = "pcp.recv"() {channel = 1, source = @d2} : () -> tensor<8xf32>
    return %2 : tensor<8xf32>
  }
}
