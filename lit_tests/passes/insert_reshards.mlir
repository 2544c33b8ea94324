// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding --pcp-insert-reshards | filecheck %s

// A contracted dimension that is cut leaves partial sums, reduced where they must be whole.
// CHECK-LABEL: func.func @partial
// CHECK: %[[P:.*]] = stablehlo.dot_general {{.*}}[#pcp.sharding<@m, {{\[\[}}], []], [], ["tp"]>]
// CHECK: "pcp.reshard"(%[[P]]) {sharding = #pcp.sharding<@m, {{\[\[}}], []], [], []>}
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @partial(%x: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}, %w: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// Two partial sums are added before they are reduced, once.
// CHECK-LABEL: func.func @once
// CHECK: stablehlo.add {{.*}}[#pcp.sharding<@m, {{\[\[}}], []], [], ["tp"]>]
// CHECK-COUNT-1: pcp.reshard
// CHECK-NOT: pcp.reshard
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @once(%x: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}, %w: tensor<8x4xf32>, %y: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.add %0, %1 : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}

// -----

// An op without a rule gets everything whole.
// CHECK-LABEL: func.func @unknown
// CHECK: %[[X:.*]] = "pcp.reshard"(%arg0) {sharding = #pcp.sharding<@m, {{\[\[}}]], [], []>}
// CHECK: stablehlo.custom_call @mine(%[[X]])
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @unknown(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @mine(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// A maximum over a cut dimension is no partial sum: pcp-partition joins it at once.
// CHECK-LABEL: func.func @maximum
// CHECK: stablehlo.reduce{{.*}}[#pcp.sharding<@m, [], [], []>]
// CHECK-NOT: pcp.reshard
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @maximum(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<f32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
