// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-plan

"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
// expected-error@+1 {{it has no throughput, so no plan can be judged; run pcp probe}}
"pcp.device"() {memory = 300 : i64, sym_name = "a", target = @cpu} : () -> ()
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {memory = 300 : i64, sym_name = "alpha", target = @cpu, throughput = {f32 = 2.0e9}} : () -> ()
// expected-error@+1 {{it names device @alpa, which is not described. Did you mean 'alpha'?}}
"pcp.link"() {bandwidth = 1.0e9, ends = [@alpha, @alpa], latency_ns = 5} : () -> ()
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {memory = 300 : i64, sym_name = "a", target = @cpu, throughput = {f32 = 2.0e9}} : () -> ()
"pcp.device"() {memory = 300 : i64, sym_name = "b", target = @cpu, throughput = {f32 = 2.0e9}} : () -> ()
"pcp.link"() {bandwidth = 1.0e9, ends = [@a, @b], latency_ns = 5} : () -> ()
// expected-error@+1 {{@b and @a have another link with other numbers}}
"pcp.link"() {bandwidth = 2.0e9, ends = [@b, @a], latency_ns = 5} : () -> ()
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// expected-error@+1 {{nothing fits: the least memory is that of dp=1}}
module {
  "pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
  "pcp.device"() {memory = 300 : i64, sym_name = "a", target = @cpu, throughput = {f32 = 2.0e9}} : () -> ()
  func.func @main(%w: tensor<64x64xf32> {pcp.role = "param", pcp.name = "w"}, %x: tensor<8x64xf32>) -> tensor<8x64xf32> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
    return %y : tensor<8x64xf32>
  }
}

// -----

// expected-error@+1 {{no pcp.device is described; give a cluster file}}
module {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}
