// The manager of JobSet as its own main.go builds it, without webhooks and their certificates: a bench spells out what they
// would default. Client limits are flags of upstream's with other defaults.
package main

import (
	"flag"
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
)

func main() {
	qps := flag.Float64("kube-api-qps", 500, "requests per second")
	burst := flag.Int("kube-api-burst", 500, "requests at once")
	concurrency := flag.Int("concurrency", 1, "reconciles at once")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.Level(zapcore.ErrorLevel)))
	rest := ctrl.GetConfigOrDie()
	rest.QPS, rest.Burst, rest.UserAgent = float32(*qps), *burst, "jobset"

	scheme := runtime.NewScheme()
	must(clientgoscheme.AddToScheme(scheme))
	must(jobset.AddToScheme(scheme))
	manager, err := ctrl.NewManager(rest, ctrl.Options{
		Scheme:     scheme,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{MaxConcurrentReconciles: *concurrency},
	})
	must(err)
	stop := ctrl.SetupSignalHandler()
	must(controllers.SetupJobSetIndexes(stop, manager.GetFieldIndexer()))
	must(controllers.SetupPodIndexes(stop, manager.GetFieldIndexer()))
	must(controllers.NewJobSetReconciler(manager.GetClient(), scheme, manager.GetEventRecorderFor("jobset")).SetupWithManager(manager))
	must(controllers.NewPodReconciler(manager.GetClient(), scheme, manager.GetEventRecorderFor("pod")).SetupWithManager(manager))
	must(manager.Start(stop))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
