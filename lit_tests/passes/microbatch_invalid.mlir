// RUN: pcp-opt %s --pcp-accumulate --split-input-file --verify-diagnostics

func.func @mean(%x: tensor<4xi32>) -> tensor<2xi32> {
  // expected-error@below {{pcp.microbatch: a mean of tensor<2xi32> would be rounded; take the sum, or convert it}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2xi32>):
    "pcp.yield"(%a) : (tensor<2xi32>) -> ()
  }) {count = 2, reduce = ["mean"]} : (tensor<4xi32>) -> tensor<2xi32>
  return %0 : tensor<2xi32>
}

// -----

func.func @sum(%x: tensor<4xi1>) -> tensor<2xi1> {
  // expected-error@below {{pcp.microbatch: a sum of tensor<2xi1> is no count; convert it to an integer}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2xi1>):
    "pcp.yield"(%a) : (tensor<2xi1>) -> ()
  }) {count = 2, reduce = ["sum"]} : (tensor<4xi1>) -> tensor<2xi1>
  return %0 : tensor<2xi1>
}

// -----

func.func @carried(%x: tensor<4xf32>, %s: tensor<f32>) -> tensor<2xf32> {
  // expected-error@below {{carries 1 values, which are its last operands and results}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2xf32>):
    "pcp.yield"(%a) : (tensor<2xf32>) -> ()
  }) {carried = 1, count = 2, reduce = []} : (tensor<4xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
