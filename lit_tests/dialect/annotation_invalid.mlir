// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives tensor<8xf32> for tensor<8x4xf32>; they must be equal}}
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>} : (tensor<8x4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{a sharding is written #pcp.sharding<@mesh, [dims], [], []>, not [["dp"], []]}}
  %0 = "pcp.constraint"(%x) {sharding = [["dp"], []]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{the sharding has 1 dims and tensor<8x4xf32> has 2}}
  %0 = "pcp.reshard"(%x) {sharding = #pcp.sharding<@m, [["dp"]], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{the sharding uses axis 'dp' twice}}
  %0 = "pcp.reshard"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], ["dp"], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'unreduced' must hold strings}}
  %0 = "pcp.reshard"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], [], [1]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{a dim's 'closed' is 0 or 1, not 2}}
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [#pcp.dim<["dp"], 2, 0>, []], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{a dim's priority is at least 0, not -1}}
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [#pcp.dim<["dp"], 1, -1>, []], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: f32) {
  // expected-error@below {{f32 cannot be sharded}}
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [], [], []>} : (f32) -> f32
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{direction is one of fwd, bwd, none, not "up"}}
  %0 = "pcp.barrier_prop"(%x) {direction = "up"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives tensor<8xf32> for}}
  %0 = "pcp.barrier_prop"(%x) {direction = "none"} : (tensor<8x4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs the attribute 'direction', a string}}
  %0 = "pcp.barrier_prop"(%x) {} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @larger(%x: tensor<8x4xf32>) -> tensor<9x4xf32> {
  // expected-error@below {{tensor<9x4xf32> is no part of tensor<8x4xf32>}}
  %0 = "pcp.to_part"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>} : (tensor<8x4xf32>) -> tensor<9x4xf32>
  return %0 : tensor<9x4xf32>
}

// -----

func.func @rank(%x: tensor<4xf32>) -> tensor<8x4xf32> {
  // expected-error@below {{tensor<4xf32> is no part of tensor<8x4xf32>}}
  %0 = "pcp.from_part"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>} : (tensor<4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
