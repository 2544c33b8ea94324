// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-propagate-sharding

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{pcp.sharding_rule is a text, as in "([i])->([i])", not 7}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = 7 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{it is written as ([i, j], [j])->([i])}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "[i, j]->[i, j]"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{', ([i])' is not understood}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, j])->([i, j]), ([i])"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{'J' is no dimension: factors are letters, as i or z_1}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, J])->([i, J])"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{it is of 2 operands, not 1}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, j], [j])->([i, j])"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{a list of 1 dimensions is for rank 2}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i])->([i])"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{i is of 4, a dimension of 8}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, j])->([i, j]) {i=4}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{j is of 4, a dimension of 8}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, j])->([j, i])"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{the size of i is missing}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([ij, k])->([ij, k])"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{i stands twice in one tensor}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, i])->([i, i])"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{no dimension is made of k}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, j])->([i, j]) {k=4}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{j is reduced, and a result is made of it}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, j])->([i, j]) reduction={j}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{reductions is not one of reduction, need_replication}}
  %0 = stablehlo.custom_call @f(%a) {pcp.sharding_rule = "([i, j])->([i, j]) reductions={j}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
