// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding | filecheck %s
// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition | filecheck %s --check-prefix=PART

// A sequence that is cut: its positions are exchanged for heads, and back.
// CHECK-LABEL: func.func @heads
// CHECK: %[[S:.*]] = stablehlo.dot_general %arg0, %arg1{{.*}}[#pcp.sharding<@m, {{\[\[}}], ["sp"], [], []], [], []>]
// CHECK-NEXT: %[[C:.*]] = "pcp.constraint"(%[[S]]) {{.*}}sharding = #pcp.sharding<@m, {{\[\[}}], ["sp"], [], []], [], []>
// CHECK: stablehlo.reduce(%[[C]] init
// CHECK: stablehlo.subtract %[[C]]
// PART-LABEL: module @m_0
// PART-NOT: pcp.all_gather
// PART-COUNT-2: "pcp.all_to_all"{{.*}} concat = 2 {{.*}}(tensor<2x4x4x8xf32>) -> tensor<2x2x8x8xf32>
// PART: stablehlo.exponential {{.*}}tensor<2x2x8x8xf32>
// PART: "pcp.all_to_all"{{.*}}(tensor<2x4x4x8xf32>) -> tensor<2x2x8x8xf32>
// PART: "pcp.all_to_all"{{.*}}(tensor<2x2x8x8xf32>) -> tensor<2x4x4x8xf32>
// PART-LABEL: module @m_1
"pcp.mesh"() {axes = [#pcp.axis<"sp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @heads(%q: tensor<2x4x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], [], ["sp"], []], [], []>}, %k: tensor<2x4x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], [], ["sp"], []], [], []>}, %v: tensor<2x4x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], [], ["sp"], []], [], []>}) -> (tensor<2x4x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], [], ["sp"], []], [], []>}) {
  %s = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %none = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%s init: %none) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
  %d = stablehlo.subtract %s, %mb : tensor<2x4x8x8xf32>
  %e = stablehlo.exponential %d : tensor<2x4x8x8xf32>
  %y = stablehlo.dot_general %e, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  return %y : tensor<2x4x8x8xf32>
}

// -----

// Three heads over two members: each keeps its queries, and gathers keys.
// CHECK-LABEL: func.func @queries
// CHECK: "pcp.constraint"{{.*}}sharding = #pcp.sharding<@m, {{\[\[}}], ["sp"], []], [], []>
// PART-LABEL: module @m_0
// PART: "pcp.all_gather"{{.*}}(tensor<3x4x8xf32>) -> tensor<3x8x8xf32>
// PART-NOT: pcp.all_to_all
// PART: stablehlo.reduce{{.*}}(tensor<3x4x8xf32>, tensor<f32>) -> tensor<3x4xf32>
// PART-LABEL: module @m_1
"pcp.mesh"() {axes = [#pcp.axis<"sp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @queries(%q: tensor<3x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["sp"], []], [], []>}, %k: tensor<3x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["sp"], []], [], []>}) -> tensor<3x8xf32> {
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<3x8x8xf32>, tensor<3x8x8xf32>) -> tensor<3x8x8xf32>
  %none = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%s init: %none) applies stablehlo.maximum across dimensions = [2] : (tensor<3x8x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  return %m : tensor<3x8xf32>
}

// -----

// Transposed scores: the softmax is along queries of the written order, which are keys.
// CHECK-LABEL: func.func @transposed
// CHECK: "pcp.constraint"{{.*}}sharding = #pcp.sharding<@m, {{\[\[}}], [], ["sp"]], [], []>
"pcp.mesh"() {axes = [#pcp.axis<"sp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @transposed(%k: tensor<3x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["sp"], []], [], []>}, %q: tensor<3x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["sp"], []], [], []>}) -> tensor<3x8xf32> {
  %s = stablehlo.dot_general %k, %q, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<3x8x8xf32>, tensor<3x8x8xf32>) -> tensor<3x8x8xf32>
  %t = stablehlo.transpose %s, dims = [0, 2, 1] : (tensor<3x8x8xf32>) -> tensor<3x8x8xf32>
  %none = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%t init: %none) applies stablehlo.maximum across dimensions = [2] : (tensor<3x8x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  return %m : tensor<3x8xf32>
}

// -----

// What the program says stands; and a product that no softmax reads is as it was.
// CHECK-LABEL: func.func @said
// CHECK-COUNT-1: pcp.constraint
// CHECK-NOT: pcp.constraint
"pcp.mesh"() {axes = [#pcp.axis<"sp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @said(%q: tensor<2x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["sp"], []], [], []>}, %k: tensor<2x8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["sp"], []], [], []>}) -> (tensor<2x8xf32>, tensor<2x8x8xf32>) {
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %c = "pcp.constraint"(%s) {sharding = #pcp.sharding<@m, [[], ["sp"], []], [], []>} : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %none = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%c init: %none) applies stablehlo.maximum across dimensions = [2] : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<2x8xf32>
  %other = stablehlo.dot_general %k, %q, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  return %m, %other : tensor<2x8xf32>, tensor<2x8x8xf32>
}
