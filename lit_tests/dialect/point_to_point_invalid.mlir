// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has channel -1; channels count from 0}}
  "pcp.send"(%x) {channel = -1, to = @d} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has to = -1; ranks count from 0}}
  "pcp.send"(%x) {channel = 0, to = -1} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'to' must be a symbol such as @name or an integer}}
  "pcp.send"(%x) {channel = 0, to = "d"} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: f32) {
  // expected-error@below {{the operand must be a ranked tensor, not f32}}
  "pcp.send"(%x) {channel = 0, to = @d} : (f32) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{the result must be a ranked tensor, not f32}}
  %0 = "pcp.recv"() {channel = 0, source = @d} : () -> f32
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has source = -2; ranks count from 0}}
  %0 = "pcp.recv"() {channel = 0, source = -2} : () -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{takes 1 result, not 0}}
  "pcp.recv"() {channel = 0, source = @d} : () -> ()
  return
}
