// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-compress-collectives{wire=bf16 min-bytes=64})' | filecheck %s

// Floats of at least 64 bytes; the whole tensor counts, not the part.
// CHECK-LABEL: func.func @large
// CHECK: "pcp.all_reduce"{{.*}}wire = bf16{{.*}}tensor<16xf32>
// CHECK: "pcp.reduce_scatter"{{.*}}wire = bf16
// CHECK: "pcp.all_gather"{{.*}}wire = bf16{{.*}}tensor<8xf32>
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @large(%a: tensor<16xf32>) -> tensor<16xf32> {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<16xf32>) -> tensor<16xf32>
  %1 = "pcp.reduce_scatter"(%0) {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []} : (tensor<16xf32>) -> tensor<8xf32>
  %2 = "pcp.all_gather"(%1) {axes = ["dp"], dim = 0, mesh = @m, sizes = []} : (tensor<8xf32>) -> tensor<16xf32>
  return %2 : tensor<16xf32>
}

// -----

// Not what is small, whole numbers, as narrow already, has a type of its own, or only
// moves.
// CHECK-LABEL: func.func @others
// CHECK-NOT: wire = bf16
// CHECK: wire = f16
// CHECK-NOT: wire = bf16
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @others(%a: tensor<15xf32>, %i: tensor<64xi32>, %h: tensor<64xf16>, %f: tensor<64xf32>) -> (tensor<15xf32>, tensor<64xi32>, tensor<64xf16>, tensor<64xf32>, tensor<64xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<15xf32>) -> tensor<15xf32>
  %1 = "pcp.all_reduce"(%i) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<64xi32>) -> tensor<64xi32>
  %2 = "pcp.all_reduce"(%h) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<64xf16>) -> tensor<64xf16>
  %3 = "pcp.all_reduce"(%f) {axes = ["dp"], kind = "sum", mesh = @m, wire = f16} : (tensor<64xf32>) -> tensor<64xf32>
  %4 = "pcp.broadcast"(%f) {axes = ["dp"], mesh = @m, root = 0} : (tensor<64xf32>) -> tensor<64xf32>
  return %0, %1, %2, %3, %4 : tensor<15xf32>, tensor<64xi32>, tensor<64xf16>, tensor<64xf32>, tensor<64xf32>
}

// -----

// What a step keeps is gathered as it is: a parameter rounded to bf16 in each step would
// not move by less than that. A gradient is only added.
// CHECK-LABEL: func.func @apply
// CHECK-NOT: wire = bf16
// CHECK: return
// CHECK-LABEL: func.func @grad
// CHECK: "pcp.all_gather"{{.*}}wire = bf16
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @apply(%w: tensor<8xf32>) -> (tensor<32xf32> {pcp.name = "w", pcp.role = "param"}) {
  %0 = "pcp.all_gather"(%w) {axes = ["tp"], dim = 0, mesh = @m, sizes = []} : (tensor<8xf32>) -> tensor<16xf32>
  %1 = "pcp.all_gather"(%0) {axes = ["dp"], dim = 0, mesh = @m, sizes = []} : (tensor<16xf32>) -> tensor<32xf32>
  return %1 : tensor<32xf32>
}
func.func @grad(%g: tensor<16xf32>) -> (tensor<32xf32> {pcp.name = "w", pcp.role = "grad"}) {
  %0 = "pcp.all_gather"(%g) {axes = ["dp"], dim = 0, mesh = @m, sizes = []} : (tensor<16xf32>) -> tensor<32xf32>
  return %0 : tensor<32xf32>
}
