// RUN: pcp-opt %s --split-input-file --pcp-stage='microbatches=2 tied=true' --pcp-schedule='kind=1f1b' --pcp-lower-schedule --pcp-verify-plan | filecheck %s --check-prefix=BEFORE
// RUN: pcp-opt %s --split-input-file --pcp-stage='microbatches=2 tied=true' --pcp-schedule='kind=1f1b' --pcp-lower-schedule --pcp-device-precision --pcp-verify-plan | filecheck %s

// A stage multiplies in the type of its device; what it sends, and the gradients, which
// are added up over the microbatches, are f32. The other stage is left alone.
// BEFORE-LABEL: module @half
// BEFORE-NOT: stablehlo.convert
// BEFORE-LABEL: module @square
// CHECK-LABEL: module @half
// CHECK: stablehlo.convert %{{.*}} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT: stablehlo.convert %{{.*}} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[P:.*]] = stablehlo.dot_general {{.*}} : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xf32>
// CHECK: %[[T:.*]] = stablehlo.tanh %[[P]] : tensor<2x4xf32>
// CHECK-NEXT: "pcp.send"(%[[T]]) {channel = 1 : i64, to = @full} : (tensor<2x4xf32>) -> ()
// CHECK: "pcp.recv"() {{.*}} -> tensor<2x4xf32>
// CHECK: %[[A:.*]] = stablehlo.dot_general {{.*}} : (tensor<2x4xbf16>, tensor<2x4xbf16>) -> tensor<4x4xf32>
// CHECK-NEXT: %[[H:.*]] = stablehlo.optimization_barrier {pcp.settled} %[[A]] : tensor<4x4xf32>
// CHECK: %[[B:.*]] = stablehlo.dot_general {{.*}} : (tensor<2x4xbf16>, tensor<2x4xbf16>) -> tensor<4x4xf32>
// CHECK-NEXT: %[[W:.*]] = stablehlo.add %[[H]], %[[B]] : tensor<4x4xf32>
// CHECK-NEXT: return %[[W]] : tensor<4x4xf32>
// CHECK-LABEL: module @full
// CHECK-NOT: bf16
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "half", target = @cpu, precision = #pcp.precision<bf16, f32, f32>} : () -> ()
"pcp.device"() {sym_name = "full", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@half, @full], sym_name = "m"} : () -> ()
func.func @grad(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %v: tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> (tensor<f32>, tensor<4x4xf32> {pcp.name = "v", pcp.role = "grad"}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<4x4xf32>
  %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.tanh %0 {pcp.stage = 0} : tensor<4x4xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] {pcp.stage = 1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %4 = stablehlo.dot_general %one, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = stablehlo.multiply %1, %1 : tensor<4x4xf32>
  %6 = stablehlo.subtract %one, %5 : tensor<4x4xf32>
  %7 = stablehlo.multiply %4, %6 : tensor<4x4xf32>
  %8 = stablehlo.dot_general %x, %7, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %3, %8 : tensor<f32>, tensor<4x4xf32>
}

// -----

// A tied parameter lies on both stages, and what is made of it alone is made by both:
// its square stays f32, so that both have the same. With data it is a stage's own.
// CHECK-LABEL: module @half
// CHECK: stablehlo.dot_general {{.*}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK: stablehlo.dot_general {{.*}} : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xf32>
// CHECK-LABEL: module @full
// CHECK: stablehlo.dot_general {{.*}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NOT: bf16
module @square {
  "pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
  "pcp.device"() {sym_name = "half", target = @cpu, precision = #pcp.precision<bf16, f32, f32>} : () -> ()
  "pcp.device"() {sym_name = "full", target = @cpu} : () -> ()
  "pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@half, @full], sym_name = "m"} : () -> ()
  func.func @main(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %0 = stablehlo.dot_general %x, %s, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.dot_general %0, %s, contracting_dims = [1] x [0] {pcp.stage = 1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
}
