// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs the attribute 'mesh', a symbol such as @name}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'axes' must be an array, not "dp"}}
  %0 = "pcp.all_reduce"(%x) {axes = "dp", kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'axes' must hold strings, as in ["dp"]}}
  %0 = "pcp.all_reduce"(%x) {axes = [0], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs at least one axis to communicate along}}
  %0 = "pcp.all_reduce"(%x) {axes = [], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names axis 'dp' twice}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp", "dp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{does not know the kind "avg" (kinds: sum, mean, max, min, prod, trimmed_mean)}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "avg"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives tensor<4xf32> for tensor<8x4xf32>; they must be equal}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "sum"} : (tensor<8x4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{takes 1 operand, not 2}}
  %0 = "pcp.all_reduce"(%x, %x) {axes = ["dp"], mesh = @m, kind = "sum"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{takes 1 result, not 0}}
  "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "sum"} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: f32) {
  // expected-error@below {{the operand must be a ranked tensor, not f32}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "sum"} : (f32) -> f32
  return
}

// -----

func.func @f(%x: tensor<complex<f32>>) {
  // expected-error@below {{cannot order complex<f32> for max}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "max"} : (tensor<complex<f32>>) -> tensor<complex<f32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has no trimmed_mean, which all_reduce has}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "trimmed_mean", sizes = []} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<i32>) {
  // expected-error@below {{cannot take the mean of i32; convert to a float}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "mean"} : (tensor<i32>) -> tensor<i32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'wire' must be a type, not 16}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "sum", wire = 16} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'ordered' must be a flag without a value}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], mesh = @m, kind = "sum", ordered = true} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{dim = 2 is not a dimension of tensor<8x4xf32>}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 2, kind = "sum", sizes = []} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{dimension 0 of tensor<8x4xf32> is not a multiple of that of tensor<3x4xf32>}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "sum", sizes = []} : (tensor<8x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{may differ only in dimension 0}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "sum", sizes = []} : (tensor<8x4xf32>) -> tensor<4x2xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{sizes [3, 4] sum to 7, and dimension 0 of tensor<8x4xf32> is 8}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "sum", sizes = [3, 4]} : (tensor<8x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{no member of sizes [3, 5] has the 4 of tensor<4x4xf32>}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "sum", sizes = [3, 5]} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{sizes are at least 0}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "sum", sizes = [-1, 9]} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'sizes' must hold integers}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "sum", sizes = ["a"]} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{does not know the kind "or"}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], mesh = @m, dim = 0, kind = "or", sizes = []} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{dimension 0 of tensor<4x4xf32> is not a multiple of that of tensor<8x4xf32>}}
  %0 = "pcp.all_gather"(%x) {axes = ["dp"], mesh = @m, dim = 0, sizes = []} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{may differ only in dimension 1}}
  %0 = "pcp.all_gather"(%x) {axes = ["dp"], mesh = @m, dim = 1, sizes = []} : (tensor<8x4xf32>) -> tensor<16x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{split = 2 is not a dimension of tensor<8x4xf32>}}
  %0 = "pcp.all_to_all"(%x) {axes = ["dp"], mesh = @m, concat = 0, split = 2} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{concat = -1 is not a dimension of tensor<8x4xf32>}}
  %0 = "pcp.all_to_all"(%x) {axes = ["dp"], mesh = @m, concat = -1, split = 0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{dimension 0 must shrink by the factor by which dimension 1 grows}}
  %0 = "pcp.all_to_all"(%x) {axes = ["dp"], mesh = @m, concat = 1, split = 0} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives tensor<4x4xf32> for tensor<8x4xf32>}}
  %0 = "pcp.all_to_all"(%x) {axes = ["dp"], mesh = @m, concat = 0, split = 0} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{root -1 is no member; members count from 0}}
  %0 = "pcp.broadcast"(%x) {axes = ["dp"], mesh = @m, root = -1} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives tensor<4xf32> for}}
  %0 = "pcp.broadcast"(%x) {axes = ["dp"], mesh = @m, root = 0} : (tensor<8x4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{member 1 is a target twice}}
  %0 = "pcp.permute"(%x) {axes = ["dp"], mesh = @m, pairs = [[0, 1], [2, 1]]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{member 0 is a source twice}}
  %0 = "pcp.permute"(%x) {axes = ["dp"], mesh = @m, pairs = [[0, 1], [0, 2]]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{a pair is [source, target], not [0]}}
  %0 = "pcp.permute"(%x) {axes = ["dp"], mesh = @m, pairs = [[0]]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{pair [0, -1]: members count from 0}}
  %0 = "pcp.permute"(%x) {axes = ["dp"], mesh = @m, pairs = [[0, -1]]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{attribute 'pairs' must hold integers}}
  %0 = "pcp.permute"(%x) {axes = ["dp"], mesh = @m, pairs = ["a"]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs at least one axis to wait along}}
  "pcp.sync"() {axes = [], mesh = @m} : () -> ()
  return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // expected-error@below {{has no codec "e4m3" (codecs: fp8, int8, e3m0, int2)}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], codec = "e4m3", kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // expected-error@below {{takes codec e3m0 for sums and means of f32}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], codec = "e3m0", kind = "max", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // expected-error@below {{has a codec and a wire type; take one}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], codec = "e3m0", kind = "sum", mesh = @m, wire = bf16} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
