// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs something to sync}}
  "pcp.param_sync"() {axes = ["dp"], mesh = @m} : () -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs at least one axis to sync along}}
  %0 = "pcp.param_sync"(%x) {axes = [], mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives other types than it takes; they must be equal}}
  %0 = "pcp.param_sync"(%x) {axes = ["dp"], mesh = @m} : (tensor<8x4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{source -1 is no member; members count from 0}}
  %0 = "pcp.param_sync"(%x) {axes = ["dp"], mesh = @m, source = -1} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: f32) {
  // expected-error@below {{takes ranked tensors, not f32}}
  %0 = "pcp.param_sync"(%x) {axes = ["dp"], mesh = @m} : (f32) -> f32
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<f32>) {
  // expected-error@below {{values of several types are written as one tuple}}
  %0:2 = "pcp.param_sync"(%x, %y) {axes = ["dp"], mesh = @m} : (tensor<8x4xf32>, tensor<f32>) -> (tensor<8x4xf32>, tensor<f32>)
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{algo is one of sha256, blake2b, not "md5"}}
  %0 = "pcp.digest"(%x) {algo = "md5"} : (tensor<8x4xf32>) -> tensor<2xi64>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives one tensor<2xi64>}}
  %0 = "pcp.digest"(%x) {algo = "sha256"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs something to hash}}
  %0 = "pcp.digest"() {algo = "sha256"} : () -> tensor<2xi64>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs something to compare}}
  "pcp.parity"() {action = "trap", axes = ["dp"], mesh = @m} : () -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{action is one of trap, repair, report, not "ignore"}}
  "pcp.parity"(%x) {action = "ignore", axes = ["dp"], mesh = @m} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs at least one axis to compare along}}
  "pcp.parity"(%x) {action = "trap", axes = [], mesh = @m} : (tensor<8x4xf32>) -> ()
  return
}
