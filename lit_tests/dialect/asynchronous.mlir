// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s

// CHECK-LABEL: func.func @overlap
func.func @overlap(%g: tensor<4xf32>, %h: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %[[F:.*]] = "pcp.start"(%arg0) ({
  // CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<4xf32>):
  // CHECK-NEXT: %[[R:.*]] = "pcp.all_reduce"(%[[A]])
  // CHECK-NEXT: "pcp.yield"(%[[R]])
  // CHECK-NEXT: }) {channel = 7 : i64} : (tensor<4xf32>) -> !pcp.future<tensor<4xf32>>
  %0 = "pcp.start"(%g) ({
  ^bb0(%a: tensor<4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
    "pcp.yield"(%r) : (tensor<4xf32>) -> ()
  }) {channel = 7} : (tensor<4xf32>) -> !pcp.future<tensor<4xf32>>
  // CHECK: stablehlo.tanh
  %1 = stablehlo.tanh %h : tensor<4xf32>
  // CHECK: "pcp.wait"(%[[F]]) : (!pcp.future<tensor<4xf32>>) -> tensor<4xf32>
  %2 = "pcp.wait"(%0) : (!pcp.future<tensor<4xf32>>) -> tensor<4xf32>
  return %2, %1 : tensor<4xf32>, tensor<4xf32>
}

// A bucket of one kind; its members may have one type, or be one tuple.
// CHECK-LABEL: func.func @bucket
func.func @bucket(%a: tensor<4xf32>, %b: tensor<4xf32>, %t: !pcp.token) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: !pcp.future<tuple<tensor<4xf32>, tensor<4xf32>>>
  %0 = "pcp.start"(%a, %b) ({
  ^bb0(%x: tensor<4xf32>, %y: tensor<4xf32>):
    %r = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
    %s = "pcp.all_reduce"(%y) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
    "pcp.yield"(%r, %s) : (tensor<4xf32>, tensor<4xf32>) -> ()
  }) {channel = 8} : (tensor<4xf32>, tensor<4xf32>) -> !pcp.future<tuple<tensor<4xf32>, tensor<4xf32>>>
  // CHECK: "pcp.wait"(%{{.*}}) : (!pcp.future<tuple<tensor<4xf32>, tensor<4xf32>>>) -> (tensor<4xf32>, tensor<4xf32>)
  %1:2 = "pcp.wait"(%0) : (!pcp.future<tuple<tensor<4xf32>, tensor<4xf32>>>) -> (tensor<4xf32>, tensor<4xf32>)
  return %1#0, %1#1 : tensor<4xf32>, tensor<4xf32>
}
