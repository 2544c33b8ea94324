// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-overlap-collectives{inflight=2},pcp-verify-plan)' | filecheck %s

// Starts where its operand is; what needs its result is put off behind other work.
// CHECK-LABEL: func.func @gradients
// CHECK-NEXT: %[[F0:.*]] = "pcp.start"(%arg0)
// CHECK: "pcp.all_reduce"
// CHECK: %[[D:.*]] = stablehlo.dot %arg0, %arg1
// CHECK-NEXT: %[[F1:.*]] = "pcp.start"(%[[D]])
// CHECK: %[[E:.*]] = stablehlo.dot %arg0, %[[D]]
// CHECK-NEXT: %[[R0:.*]] = "pcp.wait"(%[[F0]])
// CHECK-NEXT: %[[S:.*]] = stablehlo.subtract %arg1, %[[R0]]
// CHECK-NEXT: %[[R1:.*]] = "pcp.wait"(%[[F1]])
// CHECK-NEXT: return %[[S]], %[[R1]], %[[E]]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @gradients(%g: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = "pcp.all_reduce"(%g) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.subtract %w, %0 : tensor<8x8xf32>
  %2 = stablehlo.dot %g, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "pcp.all_reduce"(%2) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = stablehlo.dot %g, %2 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1, %3, %4 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// The third waits for the first: two may be under way.
// CHECK-LABEL: func.func @limit
// CHECK: %[[F0:.*]] = "pcp.start"(%arg0)
// CHECK: %[[F1:.*]] = "pcp.start"(%arg1)
// CHECK: "pcp.wait"(%[[F0]])
// CHECK: %[[F2:.*]] = "pcp.start"(%arg2)
// CHECK: "pcp.wait"(%[[F1]])
// CHECK: "pcp.wait"(%[[F2]])
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @limit(%a: tensor<4xf32>, %b: tensor<4xf32>, %c: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "pcp.all_reduce"(%c) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = stablehlo.tanh %a : tensor<4xf32>
  return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A sum that the next one needs: only what it needs comes first, the rest goes on
// behind the next one's back.
// CHECK-LABEL: func.func @chain
// CHECK-NEXT: %[[R0:.*]] = "pcp.all_reduce"(%arg0)
// CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[R0]]
// CHECK-NEXT: %[[F:.*]] = "pcp.start"(%[[E]])
// CHECK: %[[T:.*]] = stablehlo.tanh %[[R0]]
// CHECK-NEXT: %[[R1:.*]] = "pcp.wait"(%[[F]])
// CHECK-NEXT: return %[[T]], %[[R1]]
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @chain(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["tp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  %2 = stablehlo.exponential %0 : tensor<4xf32>
  %3 = "pcp.all_reduce"(%2) {axes = ["tp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  return %1, %3 : tensor<4xf32>, tensor<4xf32>
}

// -----

// Nothing is under way when a message is sent, or when a loop communicates.
// CHECK-LABEL: func.func @message
// CHECK: %[[F:.*]] = "pcp.start"(%arg0)
// CHECK: stablehlo.tanh
// CHECK-NEXT: %[[R:.*]] = "pcp.wait"(%[[F]])
// CHECK-NEXT: "pcp.send"
// CHECK-NEXT: return %[[R]]
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "d0", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
module {
func.func @recv() -> tensor<4xf32> {
  %0 = "pcp.recv"() {channel = 1 : i64, source = 0} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @message(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.tanh %a : tensor<4xf32>
  "pcp.send"(%1) {channel = 1 : i64, to = 1} : (tensor<4xf32>) -> ()
  return %0 : tensor<4xf32>
}
}

// -----

// Parameters are gathered one ahead: the second while the first works, the third only
// then.
// CHECK-LABEL: func.func @prefetch
// CHECK-NEXT: %[[W0:.*]] = "pcp.all_gather"(%arg1)
// CHECK-NEXT: %[[C:.*]] = stablehlo.convert %arg2
// CHECK-NEXT: %[[F1:.*]] = "pcp.start"(%[[C]])
// CHECK: %[[X0:.*]] = stablehlo.dot %arg0, %[[W0]]
// CHECK-NEXT: %[[W1:.*]] = "pcp.wait"(%[[F1]])
// CHECK-NEXT: %[[F2:.*]] = "pcp.start"(%arg3)
// CHECK: %[[X1:.*]] = stablehlo.dot %[[X0]], %[[W1]]
// CHECK-NEXT: %[[W2:.*]] = "pcp.wait"(%[[F2]])
// CHECK-NEXT: stablehlo.dot %[[X1]], %[[W2]]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @prefetch(%x: tensor<8x8xf32>, %a: tensor<4x8xf32>, %b: tensor<4x8xf16>, %c: tensor<4x8xf32>) -> tensor<8x8xf32> {
  %0 = "pcp.all_gather"(%a) {axes = ["dp"], dim = 0, mesh = @m, sizes = [], ordered} : (tensor<4x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot %x, %0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.convert %b : (tensor<4x8xf16>) -> tensor<4x8xf32>
  %3 = "pcp.all_gather"(%2) {axes = ["dp"], dim = 0, mesh = @m, sizes = [], ordered} : (tensor<4x8xf32>) -> tensor<8x8xf32>
  %4 = stablehlo.dot %1, %3 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %5 = "pcp.all_gather"(%c) {axes = ["dp"], dim = 0, mesh = @m, sizes = [], ordered} : (tensor<4x8xf32>) -> tensor<8x8xf32>
  %6 = stablehlo.dot %4, %5 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %6 : tensor<8x8xf32>
}

// -----

// A parameter's gather starts with the sum in front of it, what leads to it included.
// CHECK-LABEL: func.func @ahead
// CHECK: %[[T:.*]] = stablehlo.tanh %arg0
// CHECK-NEXT: %[[F0:.*]] = "pcp.start"(%[[T]])
// CHECK: %[[C:.*]] = stablehlo.convert %arg1
// CHECK-NEXT: %[[F1:.*]] = "pcp.start"(%[[C]])
// CHECK: %[[E:.*]] = stablehlo.exponential %[[T]]
// CHECK-NEXT: %[[R:.*]] = "pcp.wait"(%[[F0]])
// CHECK-NEXT: %[[W:.*]] = "pcp.wait"(%[[F1]])
// CHECK-NEXT: return %[[R]], %[[W]], %[[E]]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @ahead(%x: tensor<4xf32>, %b: tensor<4xf16>) -> (tensor<4xf32>, tensor<8xf32>, tensor<4xf32>) {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = "pcp.all_reduce"(%0) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = stablehlo.exponential %0 : tensor<4xf32>
  %3 = stablehlo.convert %b : (tensor<4xf16>) -> tensor<4xf32>
  %4 = "pcp.all_gather"(%3) {axes = ["dp"], dim = 0, mesh = @m, sizes = [], ordered} : (tensor<4xf32>) -> tensor<8xf32>
  return %1, %4, %2 : tensor<4xf32>, tensor<8xf32>, tensor<4xf32>
}

// -----

// What is free stands in front of an all-to-all, as it would hold activations behind it;
// what several exchanges brought is used when all of it is there.
// CHECK-LABEL: func.func @exchange
// CHECK: %[[F0:.*]] = "pcp.start"(%arg0)
// CHECK: %[[F1:.*]] = "pcp.start"(%arg1)
// CHECK: stablehlo.exponential %arg0
// CHECK-NEXT: %[[R0:.*]] = "pcp.wait"(%[[F0]])
// CHECK-NEXT: %[[R1:.*]] = "pcp.wait"(%[[F1]])
// CHECK-NEXT: %[[S:.*]] = stablehlo.tanh %[[R0]]
// CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[R0]], %[[R1]]
// CHECK-NEXT: %[[D:.*]] = stablehlo.dot %[[R0]], %[[R1]]
// CHECK-NEXT: "pcp.all_to_all"(%[[A]])
"pcp.mesh"() {axes = [#pcp.axis<"sp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @exchange(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x8xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["sp"], kind = "sum", mesh = @m, ordered} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "pcp.all_reduce"(%b) {axes = ["sp"], kind = "sum", mesh = @m, ordered} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.exponential %a : tensor<4x4xf32>
  %3 = stablehlo.tanh %0 : tensor<4x4xf32>
  %4 = stablehlo.add %0, %1 : tensor<4x4xf32>
  %5 = stablehlo.dot %0, %1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %6 = "pcp.all_to_all"(%4) {axes = ["sp"], concat = 1 : i64, mesh = @m, ordered, split = 0 : i64} : (tensor<4x4xf32>) -> tensor<2x8xf32>
  return %2, %3, %5, %6 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x8xf32>
}
