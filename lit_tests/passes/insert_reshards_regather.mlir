// RUN: pcp-opt %s --pcp-propagate-sharding --pcp-insert-reshards=regather=true | filecheck %s
// RUN: pcp-opt %s --pcp-propagate-sharding --pcp-insert-reshards | filecheck %s --check-prefix=ONCE
// RUN: pcp-opt %s --pcp-propagate-sharding --pcp-insert-reshards=regather=true --pcp-partition | filecheck %s --check-prefix=LOCAL

// %w is used twice in a row, then %v, then %w again: two copies of %w, one of %v. The
// small %b is gathered once, whatever lies between its uses.
// CHECK-LABEL: func.func @f
// CHECK: %[[W:.*]] = "pcp.reshard"(%arg1) {late, sharding
// CHECK: stablehlo.dot_general %arg0, %[[W]]
// CHECK-NOT: late
// CHECK: stablehlo.dot_general {{.*}}, %[[W]]
// CHECK: stablehlo.reshape %arg3
// CHECK: "pcp.reshard"({{.*}}) {sharding = #pcp.sharding<@m, {{\[\[}}]], [], []>}
// CHECK: "pcp.reshard"(%arg2) {late, sharding
// CHECK: %[[AGAIN:.*]] = "pcp.reshard"(%arg1) {late, sharding
// CHECK: stablehlo.dot_general {{.*}}, %[[AGAIN]]
// CHECK-NOT: pcp.reshard
// CHECK: return

// ONCE-LABEL: func.func @f
// ONCE-NOT: late
// ONCE-COUNT-1: "pcp.reshard"(%arg1)
// ONCE-NOT: "pcp.reshard"(%arg1)

// LOCAL: "pcp.all_gather"(%arg1) {axes = ["dp"], dim = 0 : i64, late, mesh = @m, ordered, sizes = []}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<4096x64xf32> {pcp.role = "data", pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>},
    %w: tensor<64x64xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>},
    %v: tensor<64x64xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>},
    %b: tensor<4x16xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> (tensor<4096x64xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  %2 = stablehlo.reshape %b : (tensor<4x16xf32>) -> tensor<64xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<64xf32>) -> tensor<4096x64xf32>
  %4 = stablehlo.add %1, %3 : tensor<4096x64xf32>
  %5 = stablehlo.dot_general %4, %v, contracting_dims = [1] x [0] : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [0] : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  %7 = stablehlo.multiply %6, %3 : tensor<4096x64xf32>
  return %7 : tensor<4096x64xf32>
}
