// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding | filecheck %s
// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding=explain=true | filecheck %s --check-prefix=WHY

// A batch cut along dp goes through the product; the weight stays whole.
// CHECK-LABEL: func.func @matmul
// CHECK-SAME: %arg1: tensor<16x4xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}], []], [], []>}
// CHECK: stablehlo.dot_general {{.*}}pcp.sharding = [#pcp.sharding<@m, {{\[\[}}"dp"], []], [], []>]
// WHY: pcp.why = ["dim 0 by dp: stablehlo.dot_general at
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @matmul(%x: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// Backwards too: a constraint on a result cuts the weight that makes it.
// CHECK-LABEL: func.func @backwards
// CHECK-SAME: %arg1: tensor<16x4xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}], ["tp"]], [], []>}
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @backwards(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %1 = "pcp.constraint"(%0) {sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// -----

// A reshape that splits a dimension cuts its major part.
// CHECK-LABEL: func.func @split
// CHECK: stablehlo.reshape {{.*}}[#pcp.sharding<@m, {{\[\[}}"dp"], [], []], [], []>]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @split(%x: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<4x2x16xf32> {
  %0 = stablehlo.reshape %x : (tensor<8x16xf32>) -> tensor<4x2x16xf32>
  return %0 : tensor<4x2x16xf32>
}

// -----

// What a closed dimension says stands; an open one is cut further.
// CHECK-LABEL: func.func @open
// CHECK-SAME: %arg0: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"], []], [], []>}
// CHECK-SAME: %arg1: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"], ["tp"]], [], []>}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @open(%x: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %y: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [#pcp.dim<[], 0, 0>, ["tp"]], [], []>}) -> tensor<8x16xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// Two dimensions claim dp, the batch and the contracted one of the weight: gathering
// the weight is cheaper than adding up products, so the batch has it.
// CHECK-LABEL: func.func @claimed
// CHECK: stablehlo.dot_general {{.*}}[#pcp.sharding<@m, {{\[\[}}"dp"], []], [], []>]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @claimed(%x: tensor<64x16xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<16x16xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<64x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x16xf32>, tensor<16x16xf32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}

// -----

// A weight much larger than the batch is not gathered: products are added up.
// CHECK-LABEL: func.func @claimed_by_weights
// CHECK: stablehlo.dot_general {{.*}}[#pcp.sharding<@m, {{\[\[}}], []], [], []>]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @claimed_by_weights(%x: tensor<2x16xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<16x1024xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<2x1024xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x16xf32>, tensor<16x1024xf32>) -> tensor<2x1024xf32>
  return %0 : tensor<2x1024xf32>
}

// -----

// Priority 0 speaks first: %y's dp is on dim 1 only after %x's on dim 0 has spread.
// CHECK-LABEL: func.func @priority
// CHECK: stablehlo.add {{.*}}[#pcp.sharding<@m, {{\[\[}}"dp"], []], [], []>]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @priority(%x: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [#pcp.dim<["dp"], 1, 0>, []], [], []>}, %y: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [[], #pcp.dim<["dp"], 1, 1>], [], []>}) -> tensor<8x16xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

// Nothing passes a barrier.
// CHECK-LABEL: func.func @barrier
// CHECK: stablehlo.tanh {{.*}}[#pcp.sharding<@m, {{\[\[}}], []], [], []>]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @barrier(%x: tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<8x16xf32> {
  %0 = "pcp.barrier_prop"(%x) {direction = "none"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.tanh %0 : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// -----

// A loop's carry lies alike before, in and after the loop.
// CHECK-LABEL: func.func @loop
// CHECK: stablehlo.while
// CHECK: stablehlo.tanh {{.*}}[#pcp.sharding<@m, {{\[\[}}"dp"]], [], []>]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @loop(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8xf32>
    cond {
      %three = stablehlo.constant dense<3> : tensor<i32>
      %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %w = stablehlo.tanh %v : tensor<8xf32>
      stablehlo.return %j, %w : tensor<i32>, tensor<8xf32>
    }
  return %0#1 : tensor<8xf32>
}

// -----

// Calls are inlined.
// CHECK-LABEL: func.func @call
// CHECK-NOT: call @
// CHECK: stablehlo.tanh {{.*}}[#pcp.sharding<@m, {{\[\[}}"dp"]], [], []>]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @call(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<8xf32> {
  %0 = call @callee(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @callee(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// A call is replaced by what it calls, with what is said there of its arguments, and
// of what stands in it.
// CHECK-LABEL: func.func @calls
// CHECK-NOT: call
// CHECK: "pcp.constraint"(%arg0) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>}
// CHECK-NEXT: stablehlo.tanh %{{.*}} {pcp.sharding = [#pcp.sharding<@m, {{\[}}[], ["dp"]], [], []>]}
// CHECK-NEXT: "pcp.constraint"(%{{.*}}) {sharding = #pcp.sharding<@m, {{\[}}[], ["dp"]], [], []>}
// CHECK-NEXT: return
// CHECK-NOT: func.func private
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func private @inner(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [[], ["dp"]], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @outer(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<8x4xf32> {
  %0 = stablehlo.tanh %x : tensor<8x4xf32>
  %1 = call @inner(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
func.func @calls(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = call @outer(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
