// RUN: pcp-opt %s --pcp-zero=stage=1 | filecheck %s --check-prefixes=CHECK,ONE
// RUN: pcp-opt %s --pcp-zero=stage=2 | filecheck %s --check-prefixes=CHECK,TWO
// RUN: pcp-opt %s --pcp-zero=stage=3 | filecheck %s --check-prefixes=CHECK,THREE
// RUN: pcp-opt %s --pass-pipeline='builtin.module(pcp-zero{stage=1},pcp-propagate-sharding,pcp-insert-reshards,pcp-partition)' | filecheck %s --check-prefix=CUT

// CHECK-LABEL: func.func @apply
// ONE-SAME: %arg0: tensor<8xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, {{\[\[}}]], [], []>}
// ONE-SAME: %arg1: tensor<8xf32> {pcp.role = "grad", pcp.sharding = #pcp.sharding<@m, {{\[\[}}]], [], []>}
// ONE-SAME: %arg2: tensor<8xf32> {pcp.role = "state", pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"]], [], []>}
// TWO-SAME: %arg0: tensor<8xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, {{\[\[}}]], [], []>}
// TWO-SAME: %arg1: tensor<8xf32> {pcp.role = "grad", pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"]], [], []>}
// THREE-SAME: %arg0: tensor<8xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"]], [], []>}

// Each member updates its own half and the halves are gathered.
// CUT-LABEL: module @m_0
// CUT: stablehlo.add {{.*}} : tensor<4xf32>
// CUT: stablehlo.subtract {{.*}} : tensor<4xf32>
// CUT: "pcp.all_gather"{{.*}}(tensor<4xf32>) -> tensor<8xf32>
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @apply(%w: tensor<8xf32> {pcp.role = "param"}, %g: tensor<8xf32> {pcp.role = "grad"}, %m: tensor<8xf32> {pcp.role = "state"}) -> (tensor<8xf32> {pcp.role = "param"}, tensor<8xf32> {pcp.role = "state"}) {
  %0 = stablehlo.add %m, %g : tensor<8xf32>
  %1 = stablehlo.subtract %w, %0 : tensor<8xf32>
  return %1, %0 : tensor<8xf32>, tensor<8xf32>
}

// Stage 3 uses a parameter whole, and what cuts it goes no further.
// THREE-LABEL: func.func @grad
// THREE: %[[W:.*]] = "pcp.constraint"(%arg0) {sharding = #pcp.sharding<@m, {{\[\[}}], []], [], []>}
// THREE: stablehlo.dot_general %arg1, %[[W]]
// THREE: %[[G:.*]] = stablehlo.dot_general
// THREE: %[[OUT:.*]] = "pcp.barrier_prop"(%[[G]]) {direction = "none"}
// THREE: return %{{.*}}, %[[OUT]]
func.func @grad(%w: tensor<4x4xf32> {pcp.role = "param"}, %x: tensor<8x4xf32> {pcp.role = "data"}) -> (tensor<8x4xf32> {pcp.role = "result"}, tensor<4x4xf32> {pcp.role = "grad"}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %0, %1 : tensor<8x4xf32>, tensor<4x4xf32>
}
