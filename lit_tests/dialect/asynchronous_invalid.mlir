// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives a future, not tensor<8x4xf32>}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], mesh = @m, kind = "sum"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has channel -1; channels count from 0}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], mesh = @m, kind = "sum"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = -1} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs a region whose arguments have the operands' types}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    %r = "pcp.recv"() {channel = 0, source = 0} : () -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{yields tensor<8x4xf32> for a future of tensor<4xf32>}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], mesh = @m, kind = "sum"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs a collective in its region}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    "pcp.yield"(%a) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{may hold collectives only, not 'stablehlo.tanh'}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = stablehlo.tanh %a : tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{may hold collectives of one kind, not pcp.all_reduce and pcp.broadcast}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], mesh = @m, kind = "sum"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %q = "pcp.broadcast"(%a) {axes = ["dp"], mesh = @m, root = 0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{takes 1 region, not 0}}
  %0 = "pcp.start"(%x) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs a region of one block}}
  %0 = "pcp.start"(%x) ({}) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{waits for a future, not tensor<8x4xf32>}}
  %0 = "pcp.wait"(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: !pcp.future<tensor<8x4xf32>>) {
  // expected-error@below {{gives tensor<4xf32> for a future of tensor<8x4xf32>}}
  %0 = "pcp.wait"(%x) : (!pcp.future<tensor<8x4xf32>>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: !pcp.future<tensor<8x4xf32>>) {
  // expected-error@below {{gives nothing for a future of tensor<8x4xf32>}}
  "pcp.wait"(%x) : (!pcp.future<tensor<8x4xf32>>) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{needs a region that ends in pcp.yield}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    llvm.unreachable
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}
