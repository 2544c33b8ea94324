// RUN: pcp-opt %s --pcp-verify-plan --split-input-file --verify-diagnostics

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names @n, and there is no pcp.mesh of that name}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @n} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func private @g()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names @g, which is no pcp.mesh but a func.func}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @g} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.target"() {arch = "sm_90a", caps = {}, driver = "cuda", sym_name = "h10"} : () -> ()
// expected-error@below {{names @h100, and there is no pcp.target of that name. Did you mean 'h10'?}}
"pcp.device"() {sym_name = "d0", target = @h100} : () -> ()

// -----

// expected-error@below {{names @d0, and there is no pcp.device or builtin.module of that name}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 1>], devices = [@d0], sym_name = "m"} : () -> ()

// -----

// expected-error@below {{names @d0, and there is no pcp.device}}
"pcp.link"() {bandwidth = 1.0, ends = [@d0, @d1], latency_ns = 1} : () -> ()

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names @d9, and there is no pcp.device}}
  "pcp.send"(%x) {channel = 1, to = @d9} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names @d9, and there is no pcp.device}}
  %0 = "pcp.recv"() {channel = 1, source = @d9} : () -> tensor<4xf32>
  return
}

// -----

// expected-error@below {{names @main, and there is no func.func of that name}}
"pcp.grad"() {fn = @main, sym_name = "g", wrt = []} : () -> ()

// -----

func.func private @main() -> tensor<2xf32>
// expected-error@below {{needs @main to return a floating-point scalar, not tensor<2xf32>}}
"pcp.grad"() {fn = @main, sym_name = "g", wrt = []} : () -> ()

// -----

func.func private @main(tensor<2xf32>) -> tensor<f32>
// expected-error@below {{has wrt 1, and @main has 1 arguments}}
"pcp.grad"() {fn = @main, sym_name = "g", wrt = [1]} : () -> ()

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{names @d0, and there is no pcp.device or builtin.module or pcp.mesh}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    "pcp.yield"(%a) : (tensor<4xf32>) -> ()
  }) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names axis "pp", which mesh @m has not (axes: dp, tp)}}
  %0 = "pcp.all_reduce"(%x) {axes = ["pp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has 4 parts along dimension 0 for 2 members}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has 3 sizes for 4 members}}
  %0 = "pcp.reduce_scatter"(%x) {axes = ["dp", "tp"], dim = 0, kind = "sum", mesh = @m, sizes = [2, 3, 3]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has 4 parts along dimension 1 for 2 members}}
  %0 = "pcp.all_gather"(%x) {axes = ["tp"], dim = 1, mesh = @m, sizes = []} : (tensor<8x4xf32>) -> tensor<8x16xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{cuts dimension 0 of 8 into 4 for 2 members}}
  %0 = "pcp.all_to_all"(%x) {axes = ["tp"], concat = 1, mesh = @m, split = 0} : (tensor<8x4xf32>) -> tensor<2x16xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has root 2 in a group of 2 members}}
  %0 = "pcp.broadcast"(%x) {axes = ["dp"], mesh = @m, root = 2} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names member 4 in a group of 4 members}}
  %0 = "pcp.permute"(%x) {axes = ["dp", "tp"], mesh = @m, pairs = [[0, 4]]} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has source 2 in a group of 2 members}}
  %0 = "pcp.param_sync"(%x) {axes = ["dp"], mesh = @m, source = 2} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "w"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{mesh @w is elastic along "workers"}}
  %0 = "pcp.all_gather"(%x) {axes = ["workers"], dim = 1, mesh = @w, sizes = []} : (tensor<8x4xf32>) -> tensor<8x16xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names axis "pp", which mesh @m has not}}
  %0 = stablehlo.tanh %x {pcp.sharding = [#pcp.sharding<@m, [["pp"], []], [], []>]} : tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{the sharding has 1 dims and tensor<8x4xf32> has 2}}
  %0 = stablehlo.tanh %x {pcp.sharding = [#pcp.sharding<@m, [[]], [], []>]} : tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{an array of one sharding for each of its 1 results}}
  %0 = stablehlo.tanh %x {pcp.sharding = #pcp.sharding<@m, [[], []], [], []>} : tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@below {{names axis "pp", which mesh @m has not}}
func.func private @g(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["pp"], []], [], []>})

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{names @k, and there is no pcp.mesh}}
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@k, [["dp"], []], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has a future that is waited for 0 times, not once}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has a future that is waited for 2 times, not once}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  %1 = "pcp.wait"(%0) : (!pcp.future<tensor<8x4xf32>>) -> tensor<8x4xf32>
  %2 = "pcp.wait"(%0) : (!pcp.future<tensor<8x4xf32>>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>> {
  // expected-error@below {{has a future that something else than pcp.wait uses}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  return %0 : !pcp.future<tensor<8x4xf32>>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has a future that is waited for in another block}}
  %0 = "pcp.start"(%x) ({
  ^bb0(%a: tensor<8x4xf32>):
    %r = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "pcp.yield"(%r) : (tensor<8x4xf32>) -> ()
  }) {channel = 0} : (tensor<8x4xf32>) -> !pcp.future<tensor<8x4xf32>>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %1 = "stablehlo.case"(%c) ({
    %2 = "pcp.wait"(%0) : (!pcp.future<tensor<8x4xf32>>) -> tensor<8x4xf32>
    stablehlo.return %2 : tensor<8x4xf32>
  }) : (tensor<i32>) -> tensor<8x4xf32>
  return
}

// -----

"pcp.target"() {arch = "sm_90a", caps = {}, driver = "cuda", sym_name = "h"} : () -> ()
"pcp.device"() {sym_name = "d0", target = @h} : () -> ()
"pcp.device"() {sym_name = "d1", target = @h} : () -> ()
"pcp.device"() {sym_name = "d2", target = @h} : () -> ()
"pcp.link"() {bandwidth = 1.0, ends = [@d0, @d1], latency_ns = 1} : () -> ()
func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{moves from @d0 to @d2, and no pcp.link joins them}}
  %0 = "pcp.transfer"(%x) : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d2>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{is alone: channel 1 has no receiver}}
  "pcp.send"(%x) {channel = 1, to = 1} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{is alone: channel 1 has no sender}}
  %0 = "pcp.recv"() {channel = 1, source = 0} : () -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  "pcp.send"(%x) {channel = 1, to = 1} : (tensor<8x4xf32>) -> ()
  // expected-error@below {{is the second sender of channel 1}}
  "pcp.send"(%x) {channel = 1, to = 2} : (tensor<8x4xf32>) -> ()
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  "pcp.send"(%x) {channel = 1, to = 1} : (tensor<8x4xf32>) -> ()
  // expected-error@below {{receives tensor<4xf32>, and channel 1 sends tensor<8x4xf32>}}
  %0 = "pcp.recv"() {channel = 1, source = 0} : () -> tensor<4xf32>
  return
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [@d0, @d1, @d2, @d3], sym_name = "m"} : () -> ()
module @d0 {
  func.func @f(%x: tensor<4xf32>) {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
module @d1 {
  func.func @f(%x: tensor<4xf32>) {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    // expected-error@below {{in @f waits for @d0: only @d1 has it}}
    %1 = "pcp.all_reduce"(%x) {axes = ["tp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
module @d2 {
  func.func @f(%x: tensor<4xf32>) {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
module @d3 {
  func.func @f(%x: tensor<4xf32>) {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [@d0, @d1, @d2, @d3], sym_name = "m"} : () -> ()
module @d0 {
  func.func @f(%x: tensor<4xf32>) {
    %1 = "pcp.all_reduce"(%x) {axes = ["tp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
module @d1 {
  func.func @f(%x: tensor<4xf32>) {
    // expected-error@below {{where @d0 has all_reduce tp sum tensor<4xf32> and this is all_reduce tp max tensor<4xf32>}}
    %1 = "pcp.all_reduce"(%x) {axes = ["tp"], kind = "max", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
module @d2 {
  func.func @f(%x: tensor<4xf32>) {
    return
  }
}
module @d3 {
  func.func @f(%x: tensor<4xf32>) {
    return
  }
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [@d0, @d1, @d2, @d3], sym_name = "m"} : () -> ()
module @d0 {
  func.func @f(%x: tensor<4xf32>) {
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "max", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
module @d1 {
  func.func @f(%x: tensor<4xf32>) {
    return
  }
}
module @d2 {
  func.func @f(%x: tensor<4xf32>) {
    // expected-error@below {{is number 0 that @d2 shares with @d0}}
    %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "max", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
module @d3 {
  func.func @f(%x: tensor<4xf32>) {
    return
  }
}

// -----

// A device that cannot hold what a call takes; 4x8 and 8 numbers of four bytes.
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@small, @large], sym_name = "m"} : () -> ()
module @small attributes {pcp.device = {memory = 159 : i64, target = @cpu}} {
  // expected-error@below {{does not fit on @small: the arguments of @f need 160 bytes, and it has 159; cut more of them (--zero, --sharding, a larger mesh), or use a device with more memory}}
  func.func @f(%x: tensor<4x8xf32>, %y: tensor<8xf32>) {
    return
  }
}
module @large attributes {pcp.device = {memory = 160 : i64, target = @cpu}} {
  func.func @f(%x: tensor<4x8xf32>, %y: tensor<8xf32>) {
    return
  }
}

// -----

"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 1>], devices = [@only], sym_name = "m"} : () -> ()
module @only attributes {pcp.device = {memory = 100 : i64, target = @cpu}} {
  // expected-error@below {{does not fit on @only: the results of @f need 128 bytes, and it has 100}}
  func.func @f() -> tensor<4x8xf32> {
    %0 = stablehlo.constant dense<0.0> : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
