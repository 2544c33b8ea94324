// RUN: pcp-opt %s --split-input-file --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition --pcp-device-precision --pcp-verify-plan | filecheck %s

// One member multiplies its part of the batch in bf16 and adds up in f32; the other
// is left alone, and they meet in f32. What both compute alike stays f32 on both.
// CHECK-LABEL: module @half
// CHECK: %[[A:[0-9]+]] = stablehlo.convert %arg0 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[B:[0-9]+]] = stablehlo.convert %arg0 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[P:[0-9]+]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
// CHECK-NEXT: %[[S:[0-9]+]] = "pcp.all_reduce"(%[[P]]) {{.*}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT: stablehlo.dot_general %arg1, %arg1, {{.*}}(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT: stablehlo.dot_general %[[S]], %arg1, {{.*}}(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT: return
// CHECK-LABEL: module @full
// CHECK-NOT: bf16
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "half", target = @cpu, precision = #pcp.precision<bf16, f32, f32>} : () -> ()
"pcp.device"() {sym_name = "full", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@half, @full], sym_name = "m"} : () -> ()
func.func @gram(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1, %2 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// All members compute in f16: what they compute alike is alike in f16 too. More than
// the default precision, when asked for, is kept.
// CHECK-LABEL: module @a
// CHECK: stablehlo.dot_general {{.*}}(tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf32>
// CHECK: stablehlo.dot_general {{.*}}precision = [HIGHEST, HIGHEST] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-LABEL: module @b
// CHECK: stablehlo.dot_general {{.*}}(tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf32>
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "a", target = @cpu, precision = #pcp.precision<f16, f32, f32>} : () -> ()
"pcp.device"() {sym_name = "b", target = @cpu, precision = #pcp.precision<f16, f32, f32>} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @square(%w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A loop over parts of the batch, and a convolution. The parameter that goes through
// the loop is a copy: its square stays f32.
// CHECK-LABEL: module @half
// CHECK: stablehlo.while
// CHECK: stablehlo.dot_general {{.*}}(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
// CHECK: stablehlo.dot_general {{.*}}(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK: stablehlo.convolution{{.*}}(tensor<1x4x4x1xbf16>, tensor<1x1x1x2xbf16>) -> tensor<1x4x4x2xf32>
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "half", target = @cpu, precision = #pcp.precision<bf16, f32, f32>} : () -> ()
"pcp.device"() {sym_name = "full", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@half, @full], sym_name = "m"} : () -> ()
func.func @loop(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<4x4xf32>, %i: tensor<2x4x4x1xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], [], [], []], [], []>}, %k: tensor<1x1x1x2xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>, tensor<2x4x4x2xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %0:3 = stablehlo.while(%n = %zero, %h = %x, %p = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4xf32>
  cond {
    %c = stablehlo.compare LT, %n, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %m = stablehlo.add %n, %one : tensor<i32>
    %g = stablehlo.dot_general %h, %p, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %q = stablehlo.dot_general %p, %p, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    stablehlo.return %m, %g, %q : tensor<i32>, tensor<8x4xf32>, tensor<4x4xf32>
  }
  %1 = stablehlo.convolution(%i, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x4x1xf32>, tensor<1x1x1x2xf32>) -> tensor<2x4x4x2xf32>
  return %0#1, %0#2, %1 : tensor<8x4xf32>, tensor<4x4xf32>, tensor<2x4x4x2xf32>
}

// -----

// A barrier holds a part of the batch and a copy: its results are these two. What the
// copy is multiplied to is the same on all members, and stays f32.
// CHECK-LABEL: module @half
// CHECK: %[[H:[0-9]+]]:2 = stablehlo.optimization_barrier
// CHECK: stablehlo.dot_general %[[H]]#1, %[[H]]#1, {{.*}}(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK: stablehlo.dot_general {{.*}}(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
// CHECK-LABEL: module @full
// CHECK-NOT: bf16
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "half", target = @cpu, precision = #pcp.precision<bf16, f32, f32>} : () -> ()
"pcp.device"() {sym_name = "full", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@half, @full], sym_name = "m"} : () -> ()
func.func @held(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>) {
  %h:2 = stablehlo.optimization_barrier %x, %w : tensor<8x4xf32>, tensor<4x4xf32>
  %0 = stablehlo.dot_general %h#1, %h#1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.dot_general %h#0, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %1, %0 : tensor<8x4xf32>, tensor<4x4xf32>
}
