// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding | filecheck %s

// An axis gives way to its parts where one of them is named: the same mesh, member by
// member. Whoever names the whole axis names all of its parts.
// CHECK: axes = [#pcp.axis<"x:(1)2", 2 : i64>, #pcp.axis<"x:(2)4", 4 : i64>, #pcp.axis<"y", 2 : i64>]
// CHECK-LABEL: func.func @parts
// CHECK-SAME: %arg0: tensor<16x8xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"x:(1)2", "x:(2)4"], []], [], []>}
// CHECK-SAME: %arg1: tensor<16x8xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"x:(1)2"], ["y"]], [], []>}
"pcp.mesh"() {axes = [#pcp.axis<"x", 8>, #pcp.axis<"y", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @parts(%a: tensor<16x8xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>},
                 %b: tensor<16x8xf32> {pcp.sharding = #pcp.sharding<@m, [["x:(1)2"], ["y"]], [], []>}) -> tensor<16x8xf32> {
  %0 = stablehlo.add %a, %b : tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// -----

// The values of a group lie alike, and the group is gone.
// CHECK-LABEL: func.func @group
// CHECK-SAME: %arg1: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"x"], []], [], []>}
// CHECK-NOT: sharding_group
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @group(%a: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>},
                 %b: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  "pcp.sharding_group"(%a) {group = 3 : i64} : (tensor<8x4xf32>) -> ()
  "pcp.sharding_group"(%b) {group = 3 : i64} : (tensor<8x4xf32>) -> ()
  return %a, %b : tensor<8x4xf32>, tensor<8x4xf32>
}

// -----

// What goes through a barrier side by side has nothing to do with each other: one axis
// may cut the rows of one and the columns of another. A token lies nowhere.
// CHECK-LABEL: func.func @barrier
// CHECK-SAME: %arg1: tensor<4x8xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}], ["x"]], [], []>}
// CHECK-SAME: %arg2: !stablehlo.token
// CHECK: optimization_barrier {pcp.sharding = [#pcp.sharding<@m, {{\[\[}}"x"], []], [], []>, #pcp.sharding<@m, {{\[\[}}], ["x"]], [], []>]}
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @barrier(%a: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>}, %b: tensor<4x8xf32>, %t: !stablehlo.token)
    -> (tensor<8x4xf32>, tensor<4x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["x"]], [], []>}, !stablehlo.token) {
  %0:2 = stablehlo.optimization_barrier %a, %b : tensor<8x4xf32>, tensor<4x8xf32>
  return %0#0, %0#1, %t : tensor<8x4xf32>, tensor<4x8xf32>, !stablehlo.token
}

// -----

// An open dimension of a constraint is cut further, and what is asked for stands beside.
// CHECK-LABEL: func.func @grown
// CHECK: "pcp.constraint"(%arg0) {pcp.sharding = [#pcp.sharding<@m, {{\[\[}}"x"], ["y"]], [], []>], sharding = #pcp.sharding<@m, [#pcp.dim<["x"]
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>, #pcp.axis<"y", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @grown(%a: tensor<8x4xf32>) -> (tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], ["y"]], [], []>}) {
  %0 = "pcp.constraint"(%a) {sharding = #pcp.sharding<@m, [#pcp.dim<["x"], 0, 0>, #pcp.dim<[], 0, 0>], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// An axis that two factors claim cuts no result that is not paid for, but an operand lies
// as the op reads it: the contracted dimension of the left, whose right is cut so.
// CHECK-LABEL: func.func @read
// CHECK-SAME: %arg0: tensor<32x1024xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}], ["x"]], [], []>}
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>, #pcp.axis<"y", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @read(%a: tensor<32x1024xf32>, %b: tensor<1024x16xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], ["y"]], [], []>})
    -> (tensor<32x16xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], ["y"]], [], []>}) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<32x1024xf32>, tensor<1024x16xf32>) -> tensor<32x16xf32>
  return %0 : tensor<32x16xf32>
}

// -----

// A part that is all of an axis is the axis.
// CHECK: axes = [#pcp.axis<"x", 4 : i64>]
// CHECK-LABEL: func.func @all
// CHECK-SAME: %arg0: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"x"]], [], []>}
"pcp.mesh"() {axes = [#pcp.axis<"x", 4>], devices = [], sym_name = "m"} : () -> ()
func.func @all(%a: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["x:(1)4"]], [], []>}) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}

// -----

// A reshape takes an axis apart: each part cuts its dimension, and nothing is gathered.
// Backwards, too; not where the other side is closed.
// CHECK: axes = [#pcp.axis<"x:(1)2", 2 : i64>, #pcp.axis<"x:(2)2", 2 : i64>, #pcp.axis<"y", 4 : i64>]
// CHECK-LABEL: func.func @rows
// CHECK-SAME: -> (tensor<2x4x4xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"x:(1)2"], ["x:(2)2"], []], [], []>})
// CHECK-LABEL: func.func @joined
// CHECK-SAME: %arg0: tensor<2x6x4xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"x:(1)2"], ["x:(2)2"], []], [], []>}
// CHECK-LABEL: func.func @closed
// CHECK-SAME: %arg0: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"y"], []], [], []>}
"pcp.mesh"() {axes = [#pcp.axis<"x", 4>, #pcp.axis<"y", 4>], devices = [], sym_name = "m"} : () -> ()
func.func @rows(%a: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>}) -> tensor<2x4x4xf32> {
  %0 = stablehlo.reshape %a : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  return %0 : tensor<2x4x4xf32>
}
func.func @joined(%a: tensor<2x6x4xf32>) -> (tensor<12x4xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>}) {
  %0 = stablehlo.reshape %a : (tensor<2x6x4xf32>) -> tensor<12x4xf32>
  return %0 : tensor<12x4xf32>
}
func.func @closed(%a: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["y"], []], [], []>}) -> tensor<2x4x4xf32> {
  %0 = stablehlo.reshape %a {pcp.sharding = [#pcp.sharding<@m, [[], [], []], [], []>]} : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  return %0 : tensor<2x4x4xf32>
}
