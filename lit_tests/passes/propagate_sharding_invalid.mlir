// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-propagate-sharding

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{names axis "tp", which mesh @m has not (axes: dp)}}
func.func @axis(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["tp"]], [], []>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{has 1 dims for a tensor of rank 2}}
func.func @rank(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{uses "dp" twice}}
func.func @twice(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], ["dp"]], [], []>}) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 4>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{argument 0: dimension 0 of 3 cannot be cut into 4 parts along dp}}
func.func @small(%x: tensor<3xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{a sharding names @n; the program's mesh is @m}}
func.func @mesh(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@n, [["dp"]], [], []>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// expected-error@+1 {{axis "w" is elastic}}
"pcp.mesh"() {axes = [#pcp.axis<"w", -1>], devices = [], sym_name = "m"} : () -> ()
func.func @elastic(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// Shares by which a member gets nothing.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 3>], devices = [], split = #pcp.split<"dp", [5, 2, 0]>, sym_name = "m"} : () -> ()
// expected-error@+1 {{argument 0: dimension 0 of 7 is cut along dp into 5, 2, 0, which leaves part 2 empty; leave its device out of the mesh, give it a larger share, or make the dimension larger}}
func.func @nothing_left(%x: tensor<7x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<7x4xf32> {
  return %x : tensor<7x4xf32>
}

// -----

"pcp.device"() {sym_name = "gpu0", target = @sm_90a} : () -> ()
// expected-error@+1 {{there is no pcp.device @gpu1 (there is @gpu0). Did you mean 'gpu0'?}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@gpu0, @gpu1], sym_name = "m"} : () -> ()
func.func @devices(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// An op asks for one layout and says another of its result.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @contradiction(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@+1 {{says of its result #pcp.sharding<@m, [[], ["dp"]], [], []>; keep one of them}}
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>, pcp.sharding = [#pcp.sharding<@m, [[], ["dp"]], [], []>]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @one_for_all(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@+1 {{pcp.sharding is a list with an entry for each result, not "dp"}}
  %0 = stablehlo.tanh %x {pcp.sharding = "dp"} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @too_many(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{pcp.sharding has 2 entries for 1 results}}
  %0 = stablehlo.tanh %x {pcp.sharding = [#pcp.sharding<@m, [["dp"]], [], []>, #pcp.sharding<@m, [["dp"]], [], []>]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{argument 0: pcp.sharding: a sharding is written #pcp.sharding<@mesh, [dims], [], []>, not [["dp"], []]}}
func.func @bare(%x: tensor<8x4xf32> {pcp.sharding = [["dp"], []]}) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{argument 0: pcp.sharding: attribute 'dims' must hold strings, as in ["dp"]}}
func.func @number(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [3, []], [], []>}) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}

// -----

// An axis cuts, or is kept whole, or has partial sums: one of them.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{argument 0: the sharding [dp, .] +dp uses "dp" twice}}
func.func @cut_and_partial(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], ["dp"]>}) -> tensor<8x4xf32> {
  return %x : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func private @again(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{@again calls itself, so there is no end to what a device would run; use stablehlo.while}}
  %0 = call @again(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func @recursive(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @again(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func private @elsewhere(tensor<8xf32>) -> tensor<8xf32>
func.func @call_out(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{@elsewhere has no blocks, and a program that is spread over devices is cut op by op; give it a body of one block}}
  %0 = call @elsewhere(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// expected-error@+1 {{parts of axis "x" of 6 overlap: one ends at 2, another at 3}}
"pcp.mesh"() {axes = [#pcp.axis<"x", 6>], devices = [], sym_name = "m"} : () -> ()
func.func @overlap(%x: tensor<6x6xf32> {pcp.sharding = #pcp.sharding<@m, [["x:(1)2"], []], [], []>})
    -> (tensor<6x6xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["x:(3)2"]], [], []>}) {
  return %x : tensor<6x6xf32>
}

// -----

// expected-error@+1 {{has no part "x:(1)3" of an axis (axes: x of 4)}}
"pcp.mesh"() {axes = [#pcp.axis<"x", 4>], devices = [], sym_name = "m"} : () -> ()
func.func @part(%x: tensor<6xf32> {pcp.sharding = #pcp.sharding<@m, [["x:(1)3"]], [], []>}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}

// -----

// expected-error@+1 {{axis "x" has unequal shares, so there are no parts of it}}
"pcp.mesh"() {axes = [#pcp.axis<"x", 4>], devices = [], split = #pcp.split<"x", [3, 1, 1, 1]>, sym_name = "m"} : () -> ()
func.func @shares(%x: tensor<6xf32> {pcp.sharding = #pcp.sharding<@m, [["x:(1)2"]], [], []>}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @group(%x: tensor<6xf32>, %y: tensor<6x1xf32>) {
  // expected-error@+1 {{its group has tensors of 6, 6x1; only alike ones lie alike}}
  "pcp.sharding_group"(%x) {group = 0 : i64} : (tensor<6xf32>) -> ()
  "pcp.sharding_group"(%y) {group = 0 : i64} : (tensor<6x1xf32>) -> ()
  return
}

// -----

// expected-error@+1 {{has no part "x:(1)0" of an axis (axes: x of 4)}}
"pcp.mesh"() {axes = [#pcp.axis<"x", 4>], devices = [], sym_name = "m"} : () -> ()
func.func @nothing(%x: tensor<6xf32> {pcp.sharding = #pcp.sharding<@m, [["x:(1)0"]], [], []>}) -> tensor<6xf32> {
  return %x : tensor<6xf32>
}
