// RUN: pcp-opt %s --pcp-lora="targets=q.weight|k.weight r=2 alpha=4 also=norm" | filecheck %s
// RUN: not pcp-opt %s --pcp-lora="targets=v.*" 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not pcp-opt %s --pcp-lora="targets=norm" 2>&1 | filecheck %s --check-prefix=RANK
// RUN: not pcp-opt %s --pcp-lora="targets=embed" 2>&1 | filecheck %s --check-prefix=GATHER
// RUN: not pcp-opt %s --pcp-lora="targets=q.weight r=0" 2>&1 | filecheck %s --check-prefix=RZERO
// RUN: not pcp-opt %s --pcp-lora="targets=q.weight func=loss" 2>&1 | filecheck %s --check-prefix=MISSING

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %arg0: tensor<4x3xf32> {pcp.name = "q.weight", pcp.role = "frozen"}
// CHECK-SAME: %arg1: tensor<5x4xf32> {pcp.name = "k.weight", pcp.role = "frozen"}
// CHECK-SAME: pcp.name = "norm", pcp.role = "param"
// CHECK-SAME: pcp.name = "embed", pcp.role = "frozen"
// CHECK-SAME: pcp.role = "data"
// CHECK-SAME: %arg5: tensor<2x3xf32> {pcp.init = "uniform(-0.5773503,0.5773503)", pcp.name = "q.lora_A.weight", pcp.role = "param"}
// CHECK-SAME: %arg6: tensor<4x2xf32> {pcp.init = "zeros", pcp.name = "q.lora_B.weight", pcp.role = "param"}
// CHECK-SAME: %arg7: tensor<2x4xf32> {{.*}}"k.lora_A.weight"
// CHECK-SAME: %arg8: tensor<5x2xf32> {{.*}}"k.lora_B.weight"
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[X:.*]], %{{.*}}, contracting_dims = [2] x [0]
// CHECK: %[[SMALL:.*]] = stablehlo.dot_general %[[X]], %arg5, contracting_dims = [2] x [1] {{.*}} -> tensor<7x2x2xf32>
// CHECK: %[[MADE:.*]] = stablehlo.dot_general %[[SMALL]], %arg6, contracting_dims = [2] x [1] {{.*}} -> tensor<7x2x4xf32>
// CHECK: %[[TWICE:.*]] = stablehlo.multiply %[[MADE]]
// CHECK: %[[SUM:.*]] = stablehlo.add %[[Y]], %[[TWICE]]
// CHECK: %[[Z:.*]] = stablehlo.dot_general %arg1, %[[SUM]], contracting_dims = [1] x [2] {{.*}} -> tensor<5x7x2xf32>
// CHECK: %[[K:.*]] = stablehlo.dot_general %[[SUM]], %arg7, contracting_dims = [2] x [1] {{.*}} -> tensor<7x2x2xf32>
// CHECK: stablehlo.dot_general %arg8, %[[K]], contracting_dims = [1] x [2] {{.*}} -> tensor<5x7x2xf32>

// NONE: pcp-lora: the pattern 'v.*' matches no parameter (q.weight, k.weight, norm, embed)
// RANK: pcp-lora: norm is tensor<3xf32>, no matrix; leave it out of targets, or train it whole with also=
// GATHER: stablehlo.gather: uses embed, and adapters stand beside products of dot_general
// RZERO: pcp-lora: r=0 alpha=8.0: r is above 0
// MISSING: pcp-lora: the module has no function @loss

func.func @main(
    %q: tensor<4x3xf32> {pcp.name = "q.weight", pcp.role = "param", pcp.init = "normal(0.02)"},
    %k: tensor<5x4xf32> {pcp.name = "k.weight", pcp.role = "param"},
    %norm: tensor<3xf32> {pcp.name = "norm", pcp.role = "param"},
    %embed: tensor<9x3xf32> {pcp.name = "embed", pcp.role = "param"},
    %ids: tensor<7x2xi32> {pcp.name = "ids", pcp.role = "data"}) -> tensor<5x7x2xf32> {
  %0 = "stablehlo.gather"(%embed, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 3>} : (tensor<9x3xf32>, tensor<7x2xi32>) -> tensor<7x2x3xf32>
  %1 = stablehlo.broadcast_in_dim %norm, dims = [2] : (tensor<3xf32>) -> tensor<7x2x3xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<7x2x3xf32>
  %t = stablehlo.transpose %q, dims = [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %3 = stablehlo.dot_general %2, %t, contracting_dims = [2] x [0] : (tensor<7x2x3xf32>, tensor<3x4xf32>) -> tensor<7x2x4xf32>
  %4 = stablehlo.dot_general %k, %3, contracting_dims = [1] x [2] : (tensor<5x4xf32>, tensor<7x2x4xf32>) -> tensor<5x7x2xf32>
  return %4 : tensor<5x7x2xf32>
}
