// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s --check-prefix=EFFECTS

// CHECK-LABEL: func.func @all
func.func @all(%x: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>, tensor<3x4xf32>, tensor<8x8xf32>, tensor<4x8xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  // CHECK: "pcp.all_reduce"(%arg0) {axes = ["dp"], kind = "trimmed_mean", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %t = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "trimmed_mean", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: "pcp.all_reduce"(%arg0) {axes = ["dp", "tp"], kind = "mean", mesh = @m, wire = bf16} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %0 = "pcp.all_reduce"(%x) {axes = ["dp", "tp"], kind = "mean", mesh = @m, wire = bf16} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: "pcp.reduce_scatter"(%arg0) {axes = ["dp"], dim = 0 : i64, kind = "sum", mesh = @m, sizes = []} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  %1 = "pcp.reduce_scatter"(%x) {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  // CHECK: "pcp.reduce_scatter"(%arg0) {axes = ["dp"], dim = 0 : i64, kind = "max", mesh = @m, sizes = [3, 5]} : (tensor<8x4xf32>) -> tensor<3x4xf32>
  %2 = "pcp.reduce_scatter"(%x) {axes = ["dp"], dim = 0, kind = "max", mesh = @m, sizes = [3, 5]} : (tensor<8x4xf32>) -> tensor<3x4xf32>
  // CHECK: "pcp.all_gather"(%arg0) {axes = ["dp"], dim = 1 : i64, mesh = @m, sizes = []} : (tensor<8x4xf32>) -> tensor<8x8xf32>
  %3 = "pcp.all_gather"(%x) {axes = ["dp"], dim = 1, mesh = @m, sizes = []} : (tensor<8x4xf32>) -> tensor<8x8xf32>
  // CHECK: "pcp.all_to_all"(%arg0) {axes = ["tp"], concat = 1 : i64, mesh = @m, split = 0 : i64} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %4 = "pcp.all_to_all"(%x) {axes = ["tp"], concat = 1, mesh = @m, split = 0} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  // CHECK: "pcp.broadcast"(%arg0) {axes = ["dp"], mesh = @m, root = 1 : i64}
  %5 = "pcp.broadcast"(%x) {axes = ["dp"], mesh = @m, root = 1} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: "pcp.permute"(%arg0) {axes = ["dp"], mesh = @m, pairs = {{\[\[}}0, 1], [1, 0]]}
  %6 = "pcp.permute"(%x) {axes = ["dp"], mesh = @m, pairs = [[0, 1], [1, 0]]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: "pcp.sync"() {axes = ["dp"], mesh = @m} : () -> ()
  "pcp.sync"() {axes = ["dp"], mesh = @m} : () -> ()
  return %0, %1, %2, %3, %4, %5, %6 : tensor<8x4xf32>, tensor<4x4xf32>, tensor<3x4xf32>, tensor<8x8xf32>, tensor<4x8xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}

// CHECK-LABEL: func.func @coded
func.func @coded(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: "pcp.all_reduce"(%arg0) {axes = ["dp"], codec = "e3m0", kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], codec = "e3m0", kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// In one program for all devices, equal collectives merge and dead ones go.
// EFFECTS-LABEL: func.func @pure
// EFFECTS-NEXT: pcp.all_reduce
// EFFECTS-NEXT: return
func.func @pure(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %dead = "pcp.broadcast"(%x) {axes = ["dp"], mesh = @m, root = 0} : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// In the program of one device they stay, all of them, in their order.
// EFFECTS-LABEL: func.func @ordered
// EFFECTS-NEXT: pcp.all_reduce
// EFFECTS-NEXT: pcp.all_reduce
// EFFECTS-NEXT: pcp.broadcast
// EFFECTS-NEXT: pcp.sync
// EFFECTS-NEXT: pcp.sync
// EFFECTS-NEXT: return
func.func @ordered(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %dead = "pcp.broadcast"(%x) {axes = ["dp"], mesh = @m, ordered, root = 0} : (tensor<4xf32>) -> tensor<4xf32>
  "pcp.sync"() {axes = ["dp"], mesh = @m} : () -> ()
  "pcp.sync"() {axes = ["dp"], mesh = @m} : () -> ()
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
