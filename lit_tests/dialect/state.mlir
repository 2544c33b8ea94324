// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s --check-prefix=EFFECTS

// CHECK-LABEL: func.func @shared
// EFFECTS-LABEL: func.func @shared
func.func @shared(%w: tensor<4xf32>, %v: tensor<4xf32>, %b: tensor<2xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: "pcp.param_sync"(%arg0, %arg1) {axes = ["workers"], mesh = @w} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %0:2 = "pcp.param_sync"(%w, %v) {axes = ["workers"], mesh = @w} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  // Values of several types are one tuple.
  // CHECK: "pcp.param_sync"(%{{.*}}) {axes = ["dp"], mesh = @m, ordered, source = 1 : i64} : (tuple<tensor<4xf32>, tensor<2xf32>>) -> tuple<tensor<4xf32>, tensor<2xf32>>
  // EFFECTS: pcp.param_sync{{.*}}ordered
  %t = builtin.unrealized_conversion_cast %w, %b : tensor<4xf32>, tensor<2xf32> to tuple<tensor<4xf32>, tensor<2xf32>>
  %1 = "pcp.param_sync"(%t) {axes = ["dp"], mesh = @m, ordered, source = 1} : (tuple<tensor<4xf32>, tensor<2xf32>>) -> tuple<tensor<4xf32>, tensor<2xf32>>
  // CHECK: "pcp.digest"(%arg0, %arg1) {algo = "sha256"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<2xi64>
  // EFFECTS-NOT: pcp.digest
  %h = "pcp.digest"(%w, %v) {algo = "sha256"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<2xi64>
  // CHECK: "pcp.parity"(%arg0) {action = "repair", axes = ["dp"], mesh = @m} : (tensor<4xf32>) -> ()
  // EFFECTS: pcp.parity
  "pcp.parity"(%w) {action = "repair", axes = ["dp"], mesh = @m} : (tensor<4xf32>) -> ()
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}
