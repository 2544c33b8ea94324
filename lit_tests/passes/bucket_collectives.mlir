// RUN: pcp-opt %s --split-input-file --pcp-bucket-collectives=bytes=1000 | filecheck %s

// Two reductions become one, of both flattened.
// CHECK-LABEL: func.func @together
// CHECK: stablehlo.concatenate {{.*}} -> tensor<10xf32>
// CHECK-COUNT-1: "pcp.all_reduce"{{.*}}tensor<10xf32>
// CHECK-NOT: pcp.all_reduce
// CHECK: stablehlo.slice %{{.*}} [0:4]
// CHECK: stablehlo.slice %{{.*}} [4:10]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @together(%a: tensor<4xf32>, %b: tensor<2x3xf32>) -> (tensor<4xf32>, tensor<2x3xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0, %1 : tensor<4xf32>, tensor<2x3xf32>
}

// -----

// The threshold: 600 and 600 bytes do not go together, 600 and 300 do.
// CHECK-LABEL: func.func @threshold
// CHECK: "pcp.all_reduce"{{.*}}tensor<150xf32>
// CHECK: "pcp.all_reduce"{{.*}}tensor<225xf32>
// CHECK-NOT: pcp.all_reduce
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @threshold(%a: tensor<150xf32>, %b: tensor<150xf32>, %c: tensor<75xf32>) -> (tensor<150xf32>, tensor<150xf32>, tensor<75xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<150xf32>) -> tensor<150xf32>
  %1 = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<150xf32>) -> tensor<150xf32>
  %2 = "pcp.all_reduce"(%c) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<75xf32>) -> tensor<75xf32>
  return %0, %1, %2 : tensor<150xf32>, tensor<150xf32>, tensor<75xf32>
}

// -----

// One that needs the other's result stays by itself.
// CHECK-LABEL: func.func @dependent
// CHECK: "pcp.all_reduce"{{.*}}tensor<4xf32>
// CHECK: stablehlo.tanh
// CHECK: "pcp.all_reduce"{{.*}}tensor<4xf32>
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @dependent(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  %2 = "pcp.all_reduce"(%1) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// Other groups, kinds and element types have buckets of their own.
// CHECK-LABEL: func.func @groups
// CHECK-DAG: "pcp.all_reduce"{{.*}}axes = ["dp"], kind = "sum"{{.*}}tensor<8xf32>
// CHECK-DAG: "pcp.all_reduce"{{.*}}axes = ["dp"], kind = "max"{{.*}}tensor<4xf32>
// CHECK-DAG: "pcp.all_reduce"{{.*}}axes = ["tp"], kind = "sum"{{.*}}tensor<4xf32>
// CHECK-DAG: "pcp.all_reduce"{{.*}}axes = ["dp"], kind = "sum"{{.*}}tensor<4xf64>
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @groups(%a: tensor<4xf32>, %d: tensor<4xf64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf64>, tensor<4xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "max", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "pcp.all_reduce"(%a) {axes = ["tp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "pcp.all_reduce"(%d) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf64>) -> tensor<4xf64>
  %n = stablehlo.negate %a : tensor<4xf32>
  %4 = "pcp.all_reduce"(%n) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf64>, tensor<4xf32>
}

// -----

// What reads an earlier member moves behind the bucket; no cycle arises between the
// buckets of two groups that feed each other.
// CHECK-LABEL: func.func @crossed
// CHECK: "pcp.all_reduce"{{.*}}axes = ["dp"]
// CHECK: "pcp.all_reduce"{{.*}}axes = ["tp"]
// CHECK: return
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @crossed(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.all_reduce"(%b) {axes = ["tp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "pcp.all_reduce"(%1) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "pcp.all_reduce"(%0) {axes = ["tp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return %2, %3 : tensor<4xf32>, tensor<4xf32>
}

// -----

// Nothing moves past a message: the other end may wait for it.
// CHECK-LABEL: func.func @message
// CHECK: "pcp.all_reduce"{{.*}}tensor<4xf32>
// CHECK: "pcp.send"
// CHECK: "pcp.all_reduce"{{.*}}tensor<4xf32>
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "d0", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @message(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  "pcp.send"(%0) {channel = 1 : i64, to = @d0} : (tensor<4xf32>) -> ()
  %1 = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
