// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-partition

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{an argument has no pcp.sharding; propagate first}}
func.func @bare(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @clash(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, %y: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [[]], [], []>}) -> tensor<8xf32> {
  // expected-error@+1 {{its tensors do not fit; run pcp-insert-reshards first}}
  %0 = stablehlo.add %x, %y {pcp.sharding = [#pcp.sharding<@m, [["dp"]], [], []>]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @mesh(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> (tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) {
  // expected-error@+1 {{a sharding names @n; the program's mesh is @m}}
  %0 = stablehlo.tanh %x {pcp.sharding = [#pcp.sharding<@n, [["dp"]], [], []>]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// Parts that are as large as others may be other parts.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @border(%x: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> (tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["dp"]], [], []>}) {
  %0 = stablehlo.tanh %x {pcp.sharding = [#pcp.sharding<@m, [["dp"], []], [], []>]} : tensor<8x8xf32>
  // expected-error@+1 {{operand 0 lies [dp, .], and what it becomes [., dp]; run pcp-insert-reshards first}}
  return %0 : tensor<8x8xf32>
}

// -----

// What a loop is given, and what it carries: partial sums and whole ones look alike.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @loop(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [[]], [], ["dp"]>}, %n: tensor<i32> {pcp.sharding = #pcp.sharding<@m, [], [], []>}) -> (tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [[]], [], []>}) {
  // expected-error@+1 {{operand 1 lies [.] +dp, and what it becomes [.]; run pcp-insert-reshards first}}
  %0:2 = "stablehlo.while"(%n, %x) ({
  ^bb0(%i: tensor<i32>, %h: tensor<8xf32>):
    %c = stablehlo.compare LT, %i, %i {pcp.sharding = [#pcp.sharding<@m, [], [], []>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %h: tensor<8xf32>):
    stablehlo.return %i, %h : tensor<i32>, tensor<8xf32>
  }) {pcp.sharding = [#pcp.sharding<@m, [], [], []>, #pcp.sharding<@m, [[]], [], []>]} : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>)
  return %0#1 : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @carried(%x: tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %n: tensor<i32> {pcp.sharding = #pcp.sharding<@m, [], [], []>}) -> (tensor<8x8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) {
  %0:2 = "stablehlo.while"(%n, %x) ({
  ^bb0(%i: tensor<i32>, %h: tensor<8x8xf32>):
    %c = stablehlo.compare LT, %i, %i {pcp.sharding = [#pcp.sharding<@m, [], [], []>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %h: tensor<8x8xf32>):
    %t = stablehlo.transpose %h, dims = [1, 0] {pcp.sharding = [#pcp.sharding<@m, [[], ["dp"]], [], []>]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    // expected-error@+1 {{operand 1 lies [., dp], and what it becomes [dp, .]; run pcp-insert-reshards first}}
    stablehlo.return %i, %t : tensor<i32>, tensor<8x8xf32>
  }) {pcp.sharding = [#pcp.sharding<@m, [], [], []>, #pcp.sharding<@m, [["dp"], []], [], []>]} : (tensor<i32>, tensor<8x8xf32>) -> (tensor<i32>, tensor<8x8xf32>)
  return %0#1 : tensor<8x8xf32>
}
