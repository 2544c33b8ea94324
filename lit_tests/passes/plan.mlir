// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-plan{explain=true})' | filecheck %s


// Two equal devices and a large batch: each takes half of it.
// CHECK: pcp.alternatives = [{{.*}}"dp=2 {{.*}} 2 of 2  <- taken"
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"dp", 2 : i64>], devices = [@a, @b], sym_name = "mesh"}
// CHECK: func.func @main(%arg0: tensor<64x64xf32> {{.*}}pcp.sharding = #pcp.sharding<@mesh, {{\[}}[], []], [], []>
// CHECK-SAME: %arg2: tensor<4096x64xf32> {{.*}}pcp.sharding = #pcp.sharding<@mesh, {{\[}}["dp"], []], [], []>
"pcp.target"() {sym_name = "cpu", arch = "x86_64", driver = "local", caps = {}} : () -> ()
"pcp.device"() {sym_name = "a", target = @cpu, ordinal = 0, memory = 1000000000, throughput = {f32 = 1.0e10}, membw = 1.0e10} : () -> ()
"pcp.device"() {sym_name = "b", target = @cpu, ordinal = 1, memory = 1000000000, throughput = {f32 = 1.0e10}, membw = 1.0e10} : () -> ()
"pcp.link"() {ends = [@a, @b], bandwidth = 1.0e9, latency_ns = 50000} : () -> ()
func.func @main(%up: tensor<64x64xf32> {pcp.role = "param", pcp.name = "up"}, %down: tensor<64x64xf32> {pcp.role = "param", pcp.name = "down"}, %x: tensor<4096x64xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<4096x64xf32> {
  %h = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  %t = stablehlo.tanh %h : tensor<4096x64xf32>
  %y = stablehlo.dot_general %t, %down, contracting_dims = [1] x [0] : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  return %y : tensor<4096x64xf32>
}

// -----

// A device at a hundredth of the other's speed, behind a slow link, is left out.
// CHECK: "left out: slow"
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"dp", 1 : i64>], devices = [@fast], sym_name = "mesh"}
"pcp.target"() {sym_name = "cpu", arch = "x86_64", driver = "local", caps = {}} : () -> ()
"pcp.device"() {sym_name = "slow", target = @cpu, ordinal = 0, memory = 1000000000, throughput = {f32 = 1.0e8}, membw = 1.0e8} : () -> ()
"pcp.device"() {sym_name = "fast", target = @cpu, ordinal = 1, memory = 1000000000, throughput = {f32 = 1.0e10}, membw = 1.0e10} : () -> ()
"pcp.link"() {ends = [@slow, @fast], bandwidth = 1.0e7, latency_ns = 50000000} : () -> ()
func.func @main(%w: tensor<64x64xf32> {pcp.role = "param", pcp.name = "w"}, %x: tensor<64x64xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<f32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<64x64xf32>, tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}

// -----

// One at three times the other's speed: three quarters of the batch are its share.
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"dp", 2 : i64>], devices = [@fast, @slow], split = #pcp.split<"dp", [3072, 1024]>, sym_name = "mesh"}
"pcp.target"() {sym_name = "cpu", arch = "x86_64", driver = "local", caps = {}} : () -> ()
"pcp.device"() {sym_name = "slow", target = @cpu, ordinal = 0, memory = 1000000000, throughput = {f32 = 1.0e9}, membw = 1.0e9} : () -> ()
"pcp.device"() {sym_name = "fast", target = @cpu, ordinal = 1, memory = 1000000000, throughput = {f32 = 3.0e9}, membw = 3.0e9} : () -> ()
"pcp.link"() {ends = [@slow, @fast], bandwidth = 1.0e9, latency_ns = 50000} : () -> ()
func.func @main(%w: tensor<64x64xf32> {pcp.role = "param", pcp.name = "w"}, %x: tensor<4096x64xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<f32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4096x64xf32>, tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}

// -----

// Neither device holds both weights: each gets half of them, columns and then rows.
// CHECK: "cut along tp: up:1 down:0"
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"tp", 2 : i64>], devices = [@a, @b], sym_name = "mesh"}
// CHECK: %arg0: tensor<1024x1024xf32> {{.*}}pcp.sharding = #pcp.sharding<@mesh, {{\[}}[], ["tp"]], [], []>
"pcp.target"() {sym_name = "cpu", arch = "x86_64", driver = "local", caps = {}} : () -> ()
"pcp.device"() {sym_name = "a", target = @cpu, ordinal = 0, memory = 5000000, throughput = {f32 = 1.0e10}, membw = 1.0e10} : () -> ()
"pcp.device"() {sym_name = "b", target = @cpu, ordinal = 1, memory = 5000000, throughput = {f32 = 1.0e10}, membw = 1.0e10} : () -> ()
"pcp.link"() {ends = [@a, @b], bandwidth = 1.0e9, latency_ns = 50000} : () -> ()
func.func @main(%up: tensor<1024x1024xf32> {pcp.role = "param", pcp.name = "up"}, %down: tensor<1024x1024xf32> {pcp.role = "param", pcp.name = "down"}, %x: tensor<8x1024xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<8x1024xf32> {
  %h = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0] : (tensor<8x1024xf32>, tensor<1024x1024xf32>) -> tensor<8x1024xf32>
  %t = stablehlo.tanh %h : tensor<8x1024xf32>
  %y = stablehlo.dot_general %t, %down, contracting_dims = [1] x [0] : (tensor<8x1024xf32>, tensor<1024x1024xf32>) -> tensor<8x1024xf32>
  return %y : tensor<8x1024xf32>
}
